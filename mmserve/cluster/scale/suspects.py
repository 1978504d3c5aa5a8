"""Replicas that have just failed a request. For a short time they get none; then one request tries again."""

from __future__ import annotations

SUSPECT_S = 5.0


class Suspects:
    """Per front. Short, because one bad link must not empty a healthy replica for long."""

    def __init__(self) -> None:
        self._until_s: dict[str, float] = {}

    def fail(self, replica: str, now_s: float) -> None:
        """A request failed there: no connection, no answer, or a stream that broke."""
        self._until_s[replica] = now_s + SUSPECT_S

    def answer(self, replica: str) -> None:
        """A request was answered there."""
        self._until_s.pop(replica, None)

    def avoided(self, now_s: float) -> list[str]:
        """Those that get no request now. One whose time is over gets the next request, and counts as a suspect for as
        long again unless ``answer`` is called (``probe``)."""
        return [replica for replica, until_s in self._until_s.items() if until_s > now_s]

    def probe(self, replica: str, now_s: float) -> None:
        """A request is sent there: if it is a suspect whose time is over, this one request tries it."""
        if replica in self._until_s:
            self._until_s[replica] = max(self._until_s[replica], now_s + SUSPECT_S)

    def forget(self, replica: str) -> None:
        """It has left."""
        self._until_s.pop(replica, None)
