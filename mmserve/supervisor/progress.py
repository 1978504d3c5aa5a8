"""What a person at the terminal is shown: lines, and progress bars, each for all processes that do the same."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Hashable
from contextlib import suppress
from types import TracebackType
from typing import Any, TextIO

from tqdm import tqdm

from mmserve.runtime.byte_budget import MIB
from mmserve.supervisor.child.protocol import Progress

logger = logging.getLogger(__name__)


def say(text: str, stream: TextIO) -> None:
    """Print a line. A closed pipe or a full disk is no reason to stop."""
    try:
        print(text, file=stream, flush=True)
    except OSError:
        # What is still in the buffer would fail again at the end, and change the exit code.
        with suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


_TITLES = {"bytes": "loading weights", "graphs": "capturing CUDA graphs"}
"""By unit."""


class StartBars:
    """A context manager. A bar appears with the first report of its kind, which ends the one before it; without a
    terminal there are lines in the log."""

    def __init__(self) -> None:
        self._reports: dict[str, dict[Hashable, Progress]] = {}
        self._bar: tqdm[Any] | None = None
        self._is_terminal = sys.stderr.isatty()
        # No monitor thread: children are started from a process with one thread.
        tqdm.monitor_interval = 0

    def __enter__(self) -> StartBars:
        return self

    def update(self, source: Hashable, report: Progress) -> None:
        """Record the progress of one process (``source``)."""
        is_new = report.unit not in self._reports
        reports = self._reports.setdefault(report.unit, {})
        reports[source] = report
        done, total = (sum(getattr(each, name) for each in reports.values()) for name in ("done", "total"))
        if self._is_terminal:
            with suppress(OSError):
                self._draw(report.unit, done, total, is_new=is_new)
        elif is_new:
            logger.info("%s", _TITLES[report.unit])

    def _draw(self, unit: str, done: int, total: int, *, is_new: bool) -> None:
        if is_new or self._bar is None:
            if self._bar is not None:
                self._bar.close()
            scale: dict[str, Any] = {"unit": "B", "unit_scale": True, "unit_divisor": 1024} if unit == "bytes" else {}
            bar: tqdm[Any] = tqdm(desc=_TITLES[unit], total=total, file=sys.stderr, **scale)
            self._bar = bar
        self._bar.total = total
        self._bar.n = done
        self._bar.refresh()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            with suppress(OSError):
                self._bar.close()
        elif "bytes" in self._reports and error is None:
            loaded = sum(report.done for report in self._reports["bytes"].values())
            logger.info("loaded weights: %.0f MiB", loaded / MIB)
