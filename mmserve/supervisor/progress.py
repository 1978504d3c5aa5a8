"""What a person at the terminal is shown: lines, and one progress bar for all processes that load weights."""

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


class WeightsBar:
    """A context manager. The bar appears with the first report; without a terminal there are two lines in the log."""

    def __init__(self) -> None:
        self._reports: dict[Hashable, Progress] = {}
        self._bar: tqdm[Any] | None = None
        self._is_terminal = sys.stderr.isatty()
        self._printed = False
        # No monitor thread: children are started from a process with one thread.
        tqdm.monitor_interval = 0

    def __enter__(self) -> WeightsBar:
        return self

    def update(self, source: Hashable, report: Progress) -> None:
        """Record the progress of one process (``source``)."""
        self._reports[source] = report
        done = sum(report.done for report in self._reports.values())
        total = sum(report.total for report in self._reports.values())
        if self._is_terminal:
            with suppress(OSError):
                self._draw(done, total)
        elif not self._printed:
            self._printed = True
            logger.info("loading weights")

    def _draw(self, done: int, total: int) -> None:
        if self._bar is None:
            bar: tqdm[Any] = tqdm(
                desc="loading weights", total=total, unit="B", unit_scale=True, unit_divisor=1024, file=sys.stderr
            )
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
        elif self._printed and error is None:
            loaded = sum(report.done for report in self._reports.values())
            logger.info("loaded weights: %.0f MiB", loaded / MIB)
