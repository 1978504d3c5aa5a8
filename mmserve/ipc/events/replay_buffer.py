"""The last batches that were published, for subscribers that have missed some. Bounded in bytes. Pure."""

from __future__ import annotations

from collections import deque

MAX_BATCHES = 10_000
_BATCH_NBYTES = 200
"""Memory of a batch besides its payload."""


class ReplayBuffer:
    """Batches with rising numbers; the oldest are dropped beyond ``limit_nbytes``, or MAX_BATCHES."""

    def __init__(self, limit_nbytes: int) -> None:
        self._limit_nbytes = limit_nbytes
        self._nbytes = 0
        self._batches: deque[tuple[int, bytes]] = deque()

    @property
    def nbytes(self) -> int:
        """Memory in use, about."""
        return self._nbytes

    def append(self, number: int, payload: bytes) -> None:
        """Keep a batch, which follows those that are here."""
        self._batches.append((number, payload))
        self._nbytes += len(payload) + _BATCH_NBYTES
        while self._nbytes > self._limit_nbytes or len(self._batches) > MAX_BATCHES:
            _, dropped = self._batches.popleft()
            self._nbytes -= len(dropped) + _BATCH_NBYTES

    def since(self, number: int) -> list[tuple[int, bytes]]:
        """The batches from this number on that are still here. The first may have a later number."""
        return [batch for batch in self._batches if batch[0] >= number]
