"""Ends a server that is about to use the machine's last memory, before the kernel kills another process."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import TracebackType

from benchmarks.load.memory import INTERVAL_S, available_nbytes, tree

MIN_AVAILABLE_NBYTES = 3 << 30


class OutOfMemory(Exception):
    """The server was killed because less than MIN_AVAILABLE_NBYTES were available on the machine."""


class MemoryGuard:
    """Kills ``pid`` and its descendants if memory runs out within the ``with`` block; its exit raises OutOfMemory."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._done = threading.Event()
        self._killed = False
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        if self._killed:
            raise OutOfMemory(f"less than {MIN_AVAILABLE_NBYTES >> 30} GiB were available: killed") from error

    def _watch(self) -> None:
        while self._pid is not None and not self._done.wait(INTERVAL_S):
            if available_nbytes() < MIN_AVAILABLE_NBYTES:
                self._killed = True
                for pid in tree(self._pid):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                return
