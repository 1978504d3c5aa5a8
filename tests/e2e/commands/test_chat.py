"""``mmserve chat`` as people use it: in a pipe, in a terminal, with a server of its own and with one that runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import psutil
import pytest

from tests.e2e.stack import Stack
from tests.fakes.pictures.cache import until

PICTURE = Path(__file__).parents[3] / "examples/picture.png"
QUESTION = "What colour is the circle?"
PROMPT = "\x1b\\[\\?2004h"
PROMPT_ENDS = "\x1b\\[\\?2004l"
"""What the prompt sends to the terminal when it begins to read, and when it has read a line."""
TIMEOUT_S = 110
"""A first start compiles kernels."""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"}


def _run(environment: dict[str, str], *arguments: str, question: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mmserve", "chat", *arguments]
    return subprocess.run(
        command, input=question, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


@pytest.fixture
def terminal(default_stack: Stack, environment: dict[str, str]) -> Iterator[pexpect.spawn]:
    command = ["-m", "mmserve", "chat", "--url", default_stack.url]
    with pexpect.spawn(sys.executable, command, env=environment, encoding="utf-8", timeout=TIMEOUT_S) as child:
        child.expect(PROMPT)
        yield child


def test_a_pipe_gets_the_answer_alone(default_stack: Stack, environment: dict[str, str]) -> None:
    ended = _run(environment, "--url", f"{default_stack.url}/v1", "--image", str(PICTURE), question=QUESTION)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "green\n", "")


def test_json_has_answer_usage_and_times(default_stack: Stack, environment: dict[str, str]) -> None:
    ended = _run(environment, "--url", default_stack.url, "--json", "--set", "max_tokens=3", "hello")
    found = json.loads(ended.stdout)
    assert found["finish_reason"] == "length"
    assert found["usage"]["completion_tokens"] == 3
    assert 0 < found["ttft_s"] <= found["seconds"]


def test_an_error_is_the_servers_own(default_stack: Stack, environment: dict[str, str]) -> None:
    ended = _run(environment, "--url", default_stack.url, "--set", "temperature=9", "hello")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.startswith("error: HTTP 400: temperature")
    nobody = _run(environment, "--url", "http://127.0.0.1:9", "hello")
    assert nobody.returncode == 1
    assert "http://127.0.0.1:9: " in nobody.stderr


def test_the_named_model_is_asked_wherever_the_url_comes_from(
    default_stack: Stack, environment: dict[str, str]
) -> None:
    ended = _run({**environment, "OPENAI_BASE_URL": default_stack.url}, "--model", "no-such", "hello")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "no-such" in ended.stderr


def test_a_chat_in_a_terminal(terminal: pexpect.spawn, tmp_path: Path) -> None:
    terminal.sendline(f"{QUESTION} {PICTURE}")
    terminal.expect("126x121")
    terminal.expect("green")
    terminal.expect(PROMPT)
    terminal.sendline(f"/save {tmp_path}/chat.json")
    terminal.expect(PROMPT)
    terminal.sendeof()
    terminal.expect(pexpect.EOF)
    terminal.wait()
    assert terminal.exitstatus == 0
    assert [message["role"] for message in json.loads((tmp_path / "chat.json").read_text())["messages"]] == [
        "user",
        "assistant",
    ]


def test_ctrl_c_ends_the_answer_and_frees_the_server(terminal: pexpect.spawn, default_stack: Stack) -> None:
    for setting in ("max_tokens 1900", "min_tokens 1800"):
        terminal.sendline(f"/set {setting}")
        terminal.expect(PROMPT)
    terminal.sendline("hello")
    terminal.expect(PROMPT_ENDS)
    terminal.expect("[^\\s\x1b]")  # the answer has begun; all of it takes seconds
    terminal.sendintr()
    terminal.expect("stopped")
    terminal.expect(PROMPT)
    assert default_stack.eventually("num_requests_running", 0) == 0
    terminal.sendline("/bye")
    terminal.expect(pexpect.EOF)


def test_without_a_url_a_server_is_started_and_stopped(environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "mmserve", "chat", "--image", str(PICTURE)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write(QUESTION)
        chat.stdin.close()
        until(lambda: bool(_processes_below(chat.pid)), timeout_s=TIMEOUT_S)
        server = _processes_below(chat.pid)
        assert chat.stdout.read() == "green\n"
    assert chat.returncode == 0
    assert not psutil.wait_procs(server, timeout=20)[1]


def test_a_server_ends_with_a_chat_that_is_killed(environment: dict[str, str]) -> None:
    command = ["-m", "mmserve", "chat"]
    with pexpect.spawn(sys.executable, command, env=environment, encoding="utf-8", timeout=TIMEOUT_S) as chat:
        chat.expect(PROMPT)
        server = _processes_below(chat.pid)
        assert len(server) > 3
        chat.kill(signal.SIGKILL)
        assert not psutil.wait_procs(server, timeout=TIMEOUT_S)[1]


def test_a_server_that_does_not_start_says_why(environment: dict[str, str]) -> None:
    ended = _run(environment, "--model", "/no/such/model", "hello")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "/no/such/model" in ended.stderr


def _processes_below(pid: int) -> list[psutil.Process]:
    """Processes that mmserve has named, which the chat has started."""
    return [child for child in psutil.Process(pid).children(recursive=True) if child.cmdline()[0].startswith("mmserve")]
