"""The same streams again and again while a test changes the servers: none may fail or have another text."""

from __future__ import annotations

import asyncio
import threading

from tests.e2e.faults.streams import answers_of
from tests.e2e.stack import Stack
from tests.fakes.pictures.cache import until


class SteadyLoad:
    """Asks in a thread, within its context. ``failures``: what a client would have seen."""

    def __init__(self, stack: Stack) -> None:
        self._stack, self._ends = stack, threading.Event()
        self.expected = asyncio.run(answers_of(stack))
        self.rounds, self.failures = 0, list[str]()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> SteadyLoad:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self._thread.join()

    def go_on(self) -> None:
        """Until a round has begun and ended."""
        target = self.rounds + 2
        until(lambda: self.rounds >= target, timeout_s=240)

    def _run(self) -> None:
        while not self._ends.is_set():
            try:
                if asyncio.run(answers_of(self._stack)) != self.expected:
                    self.failures.append("another text")
            except Exception as error:  # noqa: BLE001 - whatever a client would have seen
                self.failures.append(repr(error))
            self.rounds += 1
