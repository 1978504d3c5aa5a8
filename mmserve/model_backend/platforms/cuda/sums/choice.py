"""Which way of adding up is taken for a tensor of some size, from measured times. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

NCCL = "NCCL"
_WORTH = 0.95
"""Another way than NCCL must take at most this part of its time: the measurement is not exact."""
_KIB = 1024


class Choice(NamedTuple):
    """The way of tensors of at most so many bytes, and more than those of the choice before."""

    nbytes: int
    way: str


def choose(seconds: Mapping[int, Mapping[str, float]]) -> tuple[Choice, ...]:
    """``seconds``: bytes -> way -> time of one sum; NCCL is among the ways of each size. Ascending."""
    return tuple(Choice(nbytes, _fastest(ways)) for nbytes, ways in sorted(seconds.items()))


def _fastest(ways: Mapping[str, float]) -> str:
    best = min(ways, key=lambda way: ways[way])
    return best if ways[best] <= _WORTH * ways[NCCL] else NCCL


def way_of(choices: Sequence[Choice], nbytes: int) -> str:
    """That of the next larger size that was measured; NCCL for more."""
    index = bisect_left(choices, nbytes, key=lambda choice: choice.nbytes)
    return choices[index].way if index < len(choices) else NCCL


def described(choices: Sequence[Choice]) -> str:
    """For the log."""
    groups = [(way, list(group)[-1].nbytes) for way, group in groupby(choices, lambda choice: choice.way)]
    if groups and groups[-1][0] == NCCL:
        groups.pop()
    return ", ".join([*(f"{way} to {_size(nbytes)}" for way, nbytes in groups), NCCL + " above" * bool(groups)])


def _size(nbytes: int) -> str:
    return f"{nbytes // _KIB} KiB" if nbytes < _KIB * _KIB else f"{nbytes // (_KIB * _KIB)} MiB"
