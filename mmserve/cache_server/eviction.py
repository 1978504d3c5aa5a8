"""Which cached items make way for new extents: the cheapest first, and no more of them than needed.

Pure planning on a copy of the free list; nothing is evicted here. Knows no states and no leases.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mmserve.cache_server.extents import Extents

Extent = tuple[int, int]
"""(offset, size) in bytes."""


class Victim(NamedTuple):
    """An item that may be evicted; all its extents go together."""

    item_id: int
    extents: tuple[Extent, ...]
    priority: float
    """What is lost with it; the caller hands victims over in ascending order."""


class Plan(NamedTuple):
    """Where the new extents go, who goes, and the free list after both."""

    offsets: tuple[int, ...]
    victims: tuple[Victim, ...]
    extents: Extents


def plan(extents: Extents, sizes: Sequence[int], candidates: Iterable[Victim]) -> Plan | None:
    """Place all ``sizes``, evicting as little as possible; None when even all candidates do not make enough room.

    Candidates are considered in order (least valuable first) until a run of holes and candidates is long enough;
    of that run only the cheapest window is evicted, and candidates elsewhere are spared.
    """
    work, spare, gone = extents.copy(), list(candidates), []
    offsets: dict[int, int] = {}
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        size = sizes[index]
        offset = work.alloc(size)
        if offset is None:
            window = _cheapest_window(work, size, spare)
            if window is None:
                return None
            offset, victims = window
            for victim in victims:
                _give_back(work, victim)
            work.take(offset, size)
            gone += victims
            spare = [victim for victim in spare if victim not in victims]
        offsets[index] = offset
    return Plan(tuple(offsets[index] for index in range(len(sizes))), tuple(gone), work)


def _give_back(extents: Extents, victim: Victim) -> None:
    for offset, size in victim.extents:
        extents.free(offset, size)


def _cheapest_window(extents: Extents, size: int, candidates: Sequence[Victim]) -> tuple[int, list[Victim]] | None:
    """(offset, who must go) for one extent of ``size`` bytes."""
    if extents.free_nbytes + sum(length for victim in candidates for _, length in victim.extents) < size:
        return None
    trial = extents.copy()
    for number, victim in enumerate(candidates, 1):
        _give_back(trial, victim)
        runs = {trial.hole_around(offset) for offset, _ in victim.extents}
        long_enough = [(start, end) for start, end in runs if end - start >= size]
        if long_enough:
            return min(
                (_cheapest_in_run(run, size, candidates[:number]) for run in long_enough),
                key=lambda window: sum(victim.priority for victim in window[1]),
            )
    return None


def _cheapest_in_run(run: Extent, size: int, candidates: Sequence[Victim]) -> tuple[int, list[Victim]]:
    """The best place inside run (start, end): a window starts or ends where one of the run's pieces does."""
    start, end = run
    pieces = [(offset, length, v) for v in candidates for offset, length in v.extents if start <= offset < end]
    edges = {start, end - size}
    for offset, length, _ in pieces:
        edges |= {offset + length, offset - size}
    best: tuple[float, int, int, list[Victim]] | None = None
    for first in sorted(edge for edge in edges if start <= edge <= end - size):
        touched = {v.item_id: v for offset, length, v in pieces if offset < first + size and first < offset + length}
        victims = list(touched.values())
        loss = (sum(victim.priority for victim in victims), len(victims), first, victims)
        best = loss if best is None or loss[:3] < best[:3] else best
    assert best is not None, "a run long enough has a window"
    return best[2], best[3]
