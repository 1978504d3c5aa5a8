"""Consistent hashing: which replicas a name belongs to while nobody holds it.

Points depend on the replicas' ids alone, so all fronts agree without talking, and a replica that joins or leaves moves
only its own share of the names.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

import xxhash

_POINTS = 64
"""Of each replica."""


class Ring:
    """Ids of replicas by their points."""

    def __init__(self) -> None:
        self._points = array("Q")
        """In order. With ``_replicas`` in lists of their own, a search reads little memory."""
        self._replicas: list[str] = []
        """Of each point."""

    def add(self, replicas: Iterable[str]) -> None:
        """They must not be on the ring."""
        self._set([*self._all(), *((point, each) for each in replicas for point in _points_of(each))])

    def remove(self, replica: str) -> None:
        """Nothing happens if it is not on the ring."""
        self._set([each for each in self._all() if each[1] != replica])

    def owners(self, name: int, count: int) -> list[str]:
        """The first ``count`` different replicas from the name's place on."""
        found: list[str] = []
        replicas, start = self._replicas, bisect_left(self._points, name)
        for step in range(start - len(replicas), start):
            replica = replicas[step]
            if replica not in found:
                found.append(replica)
                if len(found) == count:
                    break
        return found

    def _all(self) -> Iterator[tuple[int, str]]:
        return zip(self._points, self._replicas, strict=True)

    def _set(self, points: list[tuple[int, str]]) -> None:
        points.sort()
        self._points = array("Q", [point for point, _ in points])
        self._replicas = [replica for _, replica in points]


def _points_of(replica: str) -> list[int]:
    return [xxhash.xxh3_64_intdigest(f"{replica}#{number}".encode()) for number in range(_POINTS)]
