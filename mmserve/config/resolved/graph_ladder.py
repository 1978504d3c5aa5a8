"""The numbers of rows that decode steps are captured for as CUDA graphs, and which of them a step takes. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

_SMALLEST = (1, 2, 4, 8, 16)


def ladder(max_num_seqs: int) -> tuple[int, ...]:
    """Ascending, up to ``max_num_seqs``, each at most twice the one before it.

    From 16 on each is at most half more than the one before it: rows that fill up a step read no KV cache, and cost
    little as long as products wait for weights.
    """
    return (*(rung for rung in _rungs(max_num_seqs) if rung < max_num_seqs), max_num_seqs)


def rung_of(rows: int, rungs: Sequence[int]) -> int | None:
    """The smallest that has room for so many rows; None: there is none."""
    index = bisect_left(rungs, rows)
    return rungs[index] if index < len(rungs) else None


def _rungs(limit: int) -> Iterator[int]:
    yield from _SMALLEST
    rung = _SMALLEST[-1]
    while rung < limit:
        yield rung + rung // 2
        rung *= 2
        yield rung
