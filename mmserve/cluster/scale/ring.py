"""Consistent hashing: which replicas a name belongs to while nobody holds it.

Points depend on the replicas' ids alone, so all fronts agree without talking, and a replica that joins or leaves moves
only its own share of the names.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import xxhash

_POINTS = 64
"""Of each replica."""


class Ring:
    """Ids of replicas by their points."""

    def __init__(self) -> None:
        self._points: list[tuple[int, str]] = []

    def add(self, replicas: Iterable[str]) -> None:
        """They must not be on the ring."""
        self._points += [(point, replica) for replica in replicas for point in _points_of(replica)]
        self._points.sort()

    def remove(self, replica: str) -> None:
        """Nothing happens if it is not on the ring."""
        self._points = [each for each in self._points if each[1] != replica]

    def owners(self, name: int, count: int) -> list[str]:
        """The first ``count`` different replicas from the name's place on."""
        found: list[str] = []
        points, start = self._points, bisect_left(self._points, (name, ""))
        for step in range(len(points)):
            replica = points[(start + step) % len(points)][1]
            if replica not in found:
                found.append(replica)
                if len(found) == count:
                    break
        return found


def _points_of(replica: str) -> list[int]:
    return [xxhash.xxh3_64_intdigest(f"{replica}#{number}".encode()) for number in range(_POINTS)]
