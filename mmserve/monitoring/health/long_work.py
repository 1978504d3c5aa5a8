"""Heartbeats for a main loop that computes one unit of work for longer than a heartbeat's interval."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mmserve.monitoring.health.heartbeat import INTERVAL_S, HeartbeatSender
from mmserve.runtime.cpu.compute_progress import ComputeProgress


class LongWork:
    """A thread that beats while the main loop is inside ``computing``: with progress while the process computes.

    ``with``: the thread runs inside the block. ``counts_cpu_time``: False on a device for which waiting is a busy loop;
    work then makes progress only when it ends, and where it says so (``advanced``).
    """

    def __init__(self, heartbeat: HeartbeatSender, *, counts_cpu_time: bool, interval_s: float = INTERVAL_S) -> None:
        self._heartbeat = heartbeat
        self._counts_cpu_time = counts_cpu_time
        self._interval_s = interval_s
        self._is_computing = False
        self._num_parts = 0
        """Of work, that have ended."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> LongWork:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @contextmanager
    def computing(self) -> Iterator[None]:
        """The main loop computes within the block. It beats by itself before and after."""
        self._is_computing = True
        try:
            yield
        finally:
            self._is_computing = False

    def advanced(self) -> None:
        """A part of the work has ended."""
        self._num_parts += 1

    def _run(self) -> None:
        computed, num_seen = ComputeProgress(), 0
        while not self._ended.wait(self._interval_s):
            num_parts = self._num_parts
            progressed = (computed.made() and self._counts_cpu_time) or num_parts > num_seen
            num_seen = num_parts
            if self._is_computing:
                self._heartbeat.beat(busy=True, progressed=progressed)
