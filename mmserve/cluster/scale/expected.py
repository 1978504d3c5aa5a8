"""Pictures that have been sent to a replica and that it has not reported yet, as it encodes them.

A replica reports a picture once it holds it, a second or more after it was sent. Without this table, requests for the
same new picture that come in between would go to other replicas, which would encode it too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

_FORGOTTEN_S = 30.0
"""A request that has no first token by then may have none at all."""


class Expected:
    """Of all replicas."""

    def __init__(self) -> None:
        self._replicas: dict[int, dict[str, float]] = {}
        """By name: until when it is expected of which replica."""
        self._in_order: deque[tuple[float, str, int]] = deque()

    def __bool__(self) -> bool:
        return bool(self._replicas)

    def replicas(self, name: int) -> Collection[str]:
        """That are about to hold it."""
        return self._replicas.get(name, ())

    def add(self, replica: str, names: Iterable[int], now_s: float) -> None:
        """They were sent there. Those that are expected there already stay so no longer than they would have."""
        until_s = now_s + _FORGOTTEN_S
        for name in names:
            if self._replicas.setdefault(name, {}).setdefault(replica, until_s) == until_s:
                self._in_order.append((until_s, replica, name))

    def settle(self, replica: str, names: Iterable[int]) -> None:
        """The replica has reported them."""
        for name in names:
            self._drop(replica, name)

    def forget(self, replica: str) -> None:
        """It has left, or has failed a request."""
        for name in [name for name, found in self._replicas.items() if replica in found]:
            self._drop(replica, name)

    def forget_old(self, now_s: float) -> None:
        """To be called before each decision: what was expected for long is not expected any more."""
        while self._in_order and self._in_order[0][0] <= now_s:
            until_s, replica, name = self._in_order.popleft()
            if self._replicas.get(name, {}).get(replica) == until_s:
                self._drop(replica, name)

    def _drop(self, replica: str, name: int) -> None:
        found = self._replicas.get(name)
        if found is not None and found.pop(replica, None) is not None and not found:
            del self._replicas[name]
