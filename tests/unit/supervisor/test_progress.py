"""The weights bar on a terminal and elsewhere."""

from __future__ import annotations

import io
import logging
import os
import sys

import pytest

from mmserve.supervisor.child.protocol import Progress
from mmserve.supervisor.progress import WeightsBar, say


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_one_bar_over_all_processes_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with WeightsBar() as bar:
        bar.update("rank 0", Progress(512, 1024))
        bar.update("rank 1", Progress(1024, 1024))
        bar.update("rank 0", Progress(1024, 1024))
    assert "loading weights" in terminal.getvalue()
    assert " 75%" in terminal.getvalue()
    assert "100%" in terminal.getvalue()
    assert "2.00k/2.00k" in terminal.getvalue()


def test_plain_lines_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with WeightsBar() as bar:
        for done in range(0, 4 << 20, 1 << 20):
            bar.update("rank 0", Progress(done + (1 << 20), 4 << 20))
    assert caplog.messages == ["loading weights", "loaded weights: 4 MiB"]


def test_without_reports_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with WeightsBar():
        pass
    assert capsys.readouterr().err == ""


def test_lines_that_nobody_can_read_are_dropped() -> None:
    read_fd, write_fd = os.pipe()
    os.close(read_fd)
    for descriptor in (write_fd, os.open("/dev/full", os.O_WRONLY)):
        with os.fdopen(descriptor, "w") as stream:
            say("one", stream)
            say("two", stream)
