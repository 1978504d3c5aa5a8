"""A coroutine that is cancelled at an await of the test's choice."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any


class CancelledAt(Coroutine[Any, Any, Any]):
    """For ``asyncio.create_task``: cancels its task when ``work`` waits for the ``at``-th time (from 1), ``times``
    times in a row. ``reached``: True once ``work`` has waited that often."""

    def __init__(self, work: Coroutine[Any, Any, Any], at: int, times: int = 1) -> None:
        self._work = work
        self._at = at
        self._times = times
        self._waits = 0

    @property
    def reached(self) -> bool:
        return self._waits >= self._at

    def send(self, value: Any) -> Any:
        return self._waited(self._work.send(value))

    def throw(self, *error: Any) -> Any:
        return self._waited(self._work.throw(*error))

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()

    def _waited(self, awaited: Any) -> Any:
        self._waits += 1
        if self._waits == self._at:
            self._cancel(asyncio.current_task(), self._times)
        return awaited

    def _cancel(self, task: asyncio.Task[Any] | None, times: int) -> None:
        """Cancels when the task is waiting: once in each iteration of the event loop."""
        assert task is not None
        if times:
            loop = asyncio.get_running_loop()
            loop.call_soon(task.cancel)
            loop.call_soon(self._cancel, task, times - 1)
