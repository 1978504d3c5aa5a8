"""What one request keeps in memory until its answer has ended: its body, and what it needs to go on elsewhere."""

from __future__ import annotations

from types import TracebackType

from mmserve.runtime.byte_budget import ByteBudget


class Kept:
    """Bytes of ``budget``, given back at the end of the context."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._nbytes = 0

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.grow_to(0)

    def grow_to(self, nbytes: int) -> None:
        """Keep so many bytes in all, even beyond the limit: an answer under way is not given up for memory, new
        requests are refused."""
        if nbytes > self._nbytes:
            self._budget.take(nbytes - self._nbytes)
        else:
            self._budget.give(self._nbytes - nbytes)
        self._nbytes = nbytes
