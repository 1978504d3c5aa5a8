"""The commands and programs of README, CONTRIBUTING and docs, run as they stand there against one server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.stack import Stack
from tests.fakes.processes.code_blocks import ROOT, Block, blocks

RUN = [block for block in blocks() if block.language in ("bash", "python") and block.not_run is None]
BASH = [block for block in RUN if block.language == "bash"]
PYTHON_PAGES = sorted({block.page for block in RUN if block.language == "python"})
_STRICT_CURL = 'curl() { command curl --silent --show-error --fail-with-body "$@"; }\n'


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for PATH with the ``mmserve`` of this checkout, and its Python."""
    directory = tmp_path_factory.mktemp("bin")
    for name, command in {"mmserve": f"{sys.executable} -m mmserve", "python": sys.executable}.items():
        (directory / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (directory / name).chmod(0o755)
    return directory


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where scripts run and write their files. It has the repository's examples."""
    directory = tmp_path_factory.mktemp("reader")
    (directory / "examples").symlink_to(ROOT / "examples")
    return directory


def _run(command: list[str], script: str, server: Stack, programs: Path, folder: Path) -> str:
    """Standard output of the script, whose URLs are those of ``server``."""
    script = script.replace("http://127.0.0.1:8000", server.url).replace(".venv/bin/", f"{programs}/")
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OPENAI_BASE_URL": f"{server.url}/v1",  # mmserve chat without --url would start a server of its own
    }
    found = subprocess.run([*command, script], cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.mark.parametrize("block", BASH, ids=lambda block: f"{block.page}:{block.line}")
def test_a_command_succeeds(block: Block, default_stack: Stack, programs: Path, folder: Path) -> None:
    if block.page == "CONTRIBUTING.md":  # its readers stand in the repository
        folder = ROOT
    printed = _run(["bash", "-euo", "pipefail", "-c"], _STRICT_CURL + block.code, default_stack, programs, folder)
    if "circle?" in block.code:
        assert "green" in printed.lower()


@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_a_pages_programs_run_one_after_the_other(
    page: str, default_stack: Stack, programs: Path, folder: Path
) -> None:
    lines: list[str] = []
    for block in (block for block in RUN if block.page == page and block.language == "python"):
        lines += [""] * (block.line - 1 - len(lines))  # tracebacks show the page's own lines
        lines += block.code.splitlines()
    printed = _run([sys.executable, "-c"], "\n".join(lines), default_stack, programs, folder)
    asked = "\n".join(lines).count("circle?")
    assert len(re.findall("green", printed, re.IGNORECASE)) >= asked


def test_how_many_were_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert BASH
    assert PYTHON_PAGES
    reasons = Counter(block.not_run.partition("; ")[0] for block in blocks() if block.not_run)
    with capsys.disabled():
        print(f"\ncode blocks in pages: {len(RUN)} run, {reasons.total()} not run: {dict(reasons)}")
