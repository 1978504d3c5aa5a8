"""The scripts of ``mmserve completion``, in the shells that they are for."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from mmserve.cli import main as cli
from mmserve.cli.main import _parser
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
    "bench --request-r": "bench --request-rate",
    "bench --prompts only-f": "bench --prompts only-file.yaml",
    "bench --image-dir only-d": "bench --image-dir only-directory/",
    "batch only-f": "batch only-file.yaml",
    "explain only-f": "explain only-file.yaml",
    "plan --gpu h2": "plan --gpu h200",
    "doctor --str": "doctor --strict",
}
"""Typed before the Tab key, and what stands there afterwards."""


def _script(shell: str) -> str:
    command = [sys.executable, "-m", "mmserve", "completion", shell]
    environment = {**os.environ, "MMSERVE_API_KEY": "sesame"}
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout


def _interactive(directory: Path, shell: str, *arguments: str, prepare: str) -> Iterator[pexpect.spawn[str]]:
    """A shell in a directory with one file and one directory; ``mmserve`` prints its arguments. ``prepare``: commands
    before the script is read."""
    (directory / "script").write_text(_script(shell))
    (directory / "only-file.yaml").touch()
    (directory / "only-directory").mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(directory), "TERM": "dumb", "PS1": "$ ", "COLUMNS": "200"}
    running = pexpect.spawn(shell, [*arguments, "-i"], cwd=directory, env=environment, encoding="utf-8")
    running.sendline(f'{prepare}source ./script; mmserve() {{ echo "called:$*:"; }}; echo begun')
    running.expect("begun\r\n", timeout=20)
    yield running
    running.sendline("exit")
    running.wait()
    running.close()


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pexpect.spawn[str]]:
    yield from _interactive(tmp_path_factory.mktemp("bash"), "bash", "--norc", "--noprofile", prepare="")


@pytest.fixture(scope="module")
def zsh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[pexpect.spawn[str]]:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    begin = "autoload -U compinit; compinit -u -D; unsetopt LIST_BEEP PROMPT_SP AUTO_REMOVE_SLASH; "
    yield from _interactive(tmp_path_factory.mktemp("zsh"), "zsh", "-f", prepare=begin)


def _completed(shell: pexpect.spawn[str], typed: str) -> str:
    """What the command was called with after a Tab, without spaces at its end."""
    shell.sendline(f"mmserve {typed}\t")
    shell.expect("called:([^:]*):\r\n", timeout=20)
    assert shell.match is not None
    found: str = shell.match[1]
    return found.rstrip()


@pytest.mark.parametrize("typed", COMPLETIONS)
def test_bash_completes(typed: str, bash: pexpect.spawn[str]) -> None:
    assert _completed(bash, typed) == COMPLETIONS[typed]


@pytest.mark.parametrize("typed", COMPLETIONS)
def test_zsh_completes(typed: str, zsh: pexpect.spawn[str]) -> None:
    assert _completed(zsh, typed) == COMPLETIONS[typed]


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(tmp_path: Path) -> None:
    (tmp_path / "script").write_text(_script("fish"))
    (tmp_path / "only-file.yaml").touch()
    (tmp_path / "only-directory").mkdir()
    questions = "; ".join(f"echo '? {typed}'; complete -C 'mmserve {typed}'" for typed in COMPLETIONS)
    asked = subprocess.run(
        ["fish", "--no-config", "-c", f"source ./script; {questions}"],
        check=True, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    answers = {part.split("\n")[0]: part.split("\n")[1:] for part in asked.stdout.split("? ")[1:]}
    last_words = {typed: [line.split("\t")[0] for line in lines if line] for typed, lines in answers.items()}
    assert last_words == {typed: [whole.split()[-1]] for typed, whole in COMPLETIONS.items()}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_option_is_in_the_script_and_no_secret(
    shell: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMSERVE_API_KEY", "sesame")
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "sesame" not in script
    for command, flags in _flags_by_command().items():
        assert flags <= _flags_in(script, shell, command), command


def _flags_by_command() -> dict[str, set[str]]:
    """The long flags of each command, without those that no help shows."""
    (commands,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    found = {
        command: {
            flag
            for action in parser._actions
            for flag in action.option_strings
            if flag.startswith("--") and action.help is not argparse.SUPPRESS
        }
        for command, parser in commands.choices.items()
    }
    assert {option.flag for option in OPTIONS.values()} < found["serve"]
    assert "--request-rate" in found["bench"]
    return found


def _flags_in(script: str, shell: str, command: str) -> set[str]:
    """Those that the script of a shell has for one command."""
    if shell == "fish":
        lines = [line for line in script.splitlines() if f"'_shtab_mmserve_using {command}'" in line]
        return {f"--{flag}" for line in lines for flag in re.findall(r" -l (\S+)", line)}
    start = {"bash": f"_shtab_mmserve_{command}_option_strings=(", "zsh": f"_shtab_mmserve_{command}_options=("}[shell]
    block = script[script.index(start) :]
    end = ")\n" if shell == "bash" else "\n)\n"
    return set(re.findall(r"--[\w-]+", block[: block.index(end)]))


def test_another_shell_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "csh"]) == cli.USAGE_ERROR
    captured = capsys.readouterr()
    assert "invalid choice" in captured.err
    assert len(captured.err.splitlines()) == 1
