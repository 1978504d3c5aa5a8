"""The bars of a start, on a terminal and elsewhere."""

from __future__ import annotations

import io
import logging
import os
import sys

import pytest

from mmserve.supervisor.child.protocol import Progress
from mmserve.supervisor.progress import StartBars, say


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_bar_over_all_processes_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with StartBars() as bar:
        bar.update("rank 0", Progress(512, 1024))
        bar.update("rank 1", Progress(1024, 1024))
        bar.update("rank 0", Progress(1024, 1024))
    assert "loading weights" in terminal.getvalue()
    assert " 75%" in terminal.getvalue()
    assert "100%" in terminal.getvalue()
    assert "2.00k/2.00k" in terminal.getvalue()


def test_plain_lines_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with StartBars() as bar:
        for done in range(0, 4 << 20, 1 << 20):
            bar.update("rank 0", Progress(done + (1 << 20), 4 << 20))
    assert caplog.messages == ["loading weights", "loaded weights: 4 MiB"]


def test_a_bar_for_each_kind_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with StartBars() as bars:
        bars.update("rank 0", Progress(1024, 1024))
        for done in range(14):
            bars.update("rank 0", Progress(done, 13, "graphs"))
    weights, graphs = terminal.getvalue().split("capturing CUDA graphs", 1)
    assert "1.00k/1.00k" in weights
    assert "13/13" in graphs


def test_a_line_for_each_kind_of_work(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with StartBars() as bars:
        bars.update("rank 0", Progress(1 << 20, 1 << 20))
        bars.update("rank 0", Progress(13, 13, "graphs"))
    assert caplog.messages == ["loading weights", "capturing CUDA graphs", "loaded weights: 1 MiB"]


def test_without_reports_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with StartBars():
        pass
    assert capsys.readouterr().err == ""


def test_lines_that_nobody_can_read_are_dropped() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    for descriptor in (write_fd, os.open("/dev/full", os.O_WRONLY)):
        with os.fdopen(descriptor, "w") as stream:
            say("one", stream)
            say("two", stream)
