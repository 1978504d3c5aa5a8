"""``mmserve batch`` with a server that runs: answers, bad lines, and a run that is killed."""

from __future__ import annotations

import base64
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mmserve.cli.main import main
from mmserve.client import own_server
from mmserve.client.own_server import OwnServer
from tests.e2e.stack import Stack
from tests.fakes.pictures.cache import until

PICTURE = Path(__file__).parents[3] / "examples/picture.png"
URL = f"data:image/png;base64,{base64.b64encode(PICTURE.read_bytes()).decode()}"


def _chat(name: str, **fields: Any) -> str:
    body = {"model": "llava", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, **fields}
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body})


def _about_picture(name: str) -> str:
    content = [{"type": "image_url", "image_url": {"url": URL}}, {"type": "text", "text": "What colour is the circle?"}]
    return _chat(name, messages=[{"role": "user", "content": content}], temperature=0)


def _read(path: Path) -> dict[str | None, Any]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = {line["custom_id"]: line for line in lines}
    assert len(found) == len(lines), "a line has two results"
    return found


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "in.jsonl", tmp_path / "out.jsonl"


def test_each_line_has_an_answer_or_a_reason(
    default_stack: Stack, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = files
    source.write_text("\n".join([_about_picture("picture"), _chat("hot", temperature=9), "{", _chat("text")]))
    arguments = ["batch", *map(str, files), "--url", f"{default_stack.url}/v1"]
    assert main(arguments) == 1
    captured = capsys.readouterr()
    assert "2 of 4 lines have an answer, 2 an error" in captured.out
    assert "4/4" in captured.err
    answers, errors = _read(output), _read(Path(f"{output}.errors"))
    assert answers["picture"]["response"]["body"]["choices"][0]["message"]["content"] == "green"
    assert answers["text"]["response"]["body"]["usage"]["completion_tokens"] == 2
    assert errors["hot"]["response"]["status_code"] == 400
    assert "temperature" in errors["hot"]["response"]["body"]["error"]["message"]
    assert errors[None]["error"]["line"] == 3
    assert main(arguments) == 1
    assert _read(output) == answers


def test_a_run_that_is_killed_goes_on(default_stack: Stack, files: tuple[Path, Path]) -> None:
    source, output = files
    names = [f"{number:02}" for number in range(30)]
    source.write_text("\n".join(_chat(name, max_tokens=100, min_tokens=100) for name in names))
    arguments = [*map(str, files), "--url", default_stack.url, "--in-flight", "2", "--no-progress"]
    with subprocess.Popen([sys.executable, "-m", "mmserve", "batch", *arguments]) as run:
        until(lambda: output.exists() and output.read_bytes().count(b"\n") >= 3, timeout_s=60)
        run.send_signal(signal.SIGKILL)
    assert 3 <= len(_read(output)) < 30
    before = default_stack.metric("http_requests_total")
    assert main(["batch", *arguments]) == 0
    assert sorted(map(str, _read(output))) == names
    assert default_stack.metric("http_requests_total") - before <= 28


def test_without_a_url_a_server_is_started(
    default_stack: Stack, files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[tuple[str, Sequence[str]]] = []

    @contextlib.contextmanager
    def start(model: str, arguments: Sequence[str]) -> Iterator[OwnServer]:
        started.append((model, arguments))
        yield OwnServer(default_stack.url, "none")

    monkeypatch.setattr(own_server, "own_server", start)
    files[0].write_text(_chat("a"))
    assert main(["batch", *map(str, files), "--model", "llava", "--max-num-seqs", "9"]) == 0
    assert started == [("llava", ["--max-num-seqs", "9"])]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--url", "http://127.0.0.1:9", "--tp", "2"], "--tp is for a server that is started"),
        (["--in-flight", "0"], "--in-flight 0"),
        (["--max-num-seq", "1"], "unknown argument --max-num-seq"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: list[str], says: str, files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    files[0].write_text(_chat("a"))
    assert main(["batch", *map(str, files), *arguments]) == 2
    assert says in capsys.readouterr().err


def test_an_input_that_is_missing_is_named(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["batch", *map(str, files), "--url", "http://127.0.0.1:9"]) == 1
    assert f"{files[0]}: No such file" in capsys.readouterr().err
