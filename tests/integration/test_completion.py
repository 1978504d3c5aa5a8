"""The scripts of ``mmserve completion``, in the shells that they are for."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from mmserve.cli import main as cli
from mmserve.config.options import OPTIONS

COMPLETIONS = {
    "comp": "completion",
    "completion fi": "completion fish",
    "serve --max-num-b": "serve --max-num-batched-tokens",
    "serve --no-enable-conc": "serve --no-enable-concurrent-alloc",
    "serve --dtype bf": "serve --dtype bfloat16",
    "serve --tp 2 --dev": "serve --tp 2 --device",
    "serve --config only-f": "serve --config only-file.yaml",
    "serve --model only-d": "serve --model only-directory/",
    "plan --kv-cache-d": "plan --kv-cache-dtype",
    "chat --image only-f": "chat --image only-file.yaml",
    "models --model-impl t": "models --model-impl transformers",
}
"""Typed before the Tab key, and what stands there afterwards."""


def _script(shell: str) -> str:
    command = [sys.executable, "-m", "mmserve", "completion", shell]
    environment = {**os.environ, "MMSERVE_API_KEY": "sesame"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pexpect.spawn[str]]:
    """An interactive bash in a directory with one file and one directory; ``mmserve`` prints its arguments."""
    directory = tmp_path_factory.mktemp("completion")
    (directory / "script").write_text(_script("bash"))
    (directory / "only-file.yaml").touch()
    (directory / "only-directory").mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "TERM": "dumb", "PS1": "$ ", "COLUMNS": "200"}
    shell = pexpect.spawn("bash", ["--norc", "--noprofile", "-i"], cwd=directory, env=environment, encoding="utf-8")
    shell.sendline('source ./script; mmserve() { echo "called:$*:"; }; echo begun')
    shell.expect("begun\r\n")
    yield shell
    shell.sendline("exit")
    shell.wait()
    shell.close()


@pytest.mark.parametrize("typed", COMPLETIONS)
def test_bash_completes(typed: str, bash: pexpect.spawn[str]) -> None:
    bash.sendline(f"mmserve {typed}\t")
    bash.expect("called:(.*):\r\n", timeout=20)
    assert bash.match is not None
    assert bash.match[1] == COMPLETIONS[typed]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(_script("fish"))
    question = f"source {tmp_path}/script; complete -C 'mmserve serve --dtype b'"
    found = subprocess.run(["fish", "-c", question], check=True, capture_output=True, text=True).stdout
    assert [line.split()[0] for line in found.splitlines()] == ["bfloat16"]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_reads_its_script(tmp_path: Path) -> None:
    (tmp_path / "_mmserve").write_text(_script("zsh"))
    subprocess.run(["zsh", "-n", tmp_path / "_mmserve"], check=True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_option_is_in_the_script_and_no_secret(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMSERVE_API_KEY", "sesame")
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "sesame" not in script
    for option in OPTIONS.values():
        assert option.flag.lstrip("-") in script, option.flag


def test_another_shell_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "csh"]) == cli.USAGE_ERROR
    captured = capsys.readouterr()
    assert "invalid choice" in captured.err
    assert len(captured.err.splitlines()) == 1
