"""Free space: best fit, exact places, neighbours joined."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.cache_server.allocator.extents import FreeExtents


def test_the_smallest_hole_that_fits_is_used() -> None:
    extents = FreeExtents(1000)
    extents.take(100, 100)
    extents.take(400, 100)
    assert sorted(extents.holes()) == [(0, 100), (200, 400), (500, 1000)]
    assert extents.alloc(150) == 200
    assert extents.alloc(60) == 0
    assert extents.alloc(501) is None


def test_freed_neighbours_become_one_hole() -> None:
    extents = FreeExtents(300)
    for offset in (0, 100, 200):
        extents.take(offset, 100)
    for offset in (0, 200, 100):
        extents.free(offset, 100)
    assert list(extents.holes()) == [(0, 300)]
    assert extents.free_nbytes == 300


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60))
def test_extents_never_overlap_and_sizes_add_up(steps: list[tuple[bool, int]]) -> None:
    extents, live = FreeExtents(256), dict[int, int]()
    for give, number in steps:
        if give and live:
            offset = sorted(live)[number % len(live)]
            extents.free(offset, live.pop(offset))
        elif (offset_or_none := extents.alloc(number)) is not None:
            live[offset_or_none] = number
        pieces = sorted([*((o, o + n) for o, n in live.items()), *extents.holes()])
        assert pieces[0][0] == 0
        assert pieces[-1][1] == 256
        assert all(left[1] == right[0] for left, right in itertools.pairwise(pieces))
        assert extents.free_nbytes + sum(live.values()) == 256


def test_freeing_twice_is_an_error() -> None:
    extents = FreeExtents(300)
    extents.take(100, 100)
    for offset, size in ((0, 10), (90, 20), (190, 20), (290, 10)):
        with pytest.raises(AssertionError):
            extents.free(offset, size)
    extents.free(100, 100)
    assert list(extents.holes()) == [(0, 300)]


def test_only_free_bytes_can_be_taken_and_nothing_is_no_extent() -> None:
    for offset, size in ((90, 20), (150, 10), (190, 20), (290, 20), (0, 0)):
        extents = FreeExtents(300)
        extents.take(100, 100)
        with pytest.raises(AssertionError):
            extents.take(offset, size)
    with pytest.raises(AssertionError):
        extents.free(100, 0)


def test_a_run_lies_in_one_hole_or_nowhere() -> None:
    extents = FreeExtents(100)
    extents.take(30, 10)
    assert extents.alloc_run([10, 20]) == [0, 10]
    assert extents.alloc_run([30, 31]) is None
    assert extents.alloc_run([30, 30]) == [40, 70]
    assert extents.free_nbytes == 0


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.randoms(use_true_random=False), st.integers(0, 12))
def test_freeing_and_taking_many_equals_freeing_and_taking_each(
    sizes: list[int], random: random.Random, keep: int
) -> None:
    together, apart = FreeExtents(128), FreeExtents(128)
    pieces = [(offset, size) for size in sizes if (offset := together.alloc(size)) is not None]
    for offset, size in pieces:
        apart.take(offset, size)
    random.shuffle(pieces)
    together.free_all(pieces[keep:])
    for offset, size in pieces[keep:]:
        apart.free(offset, size)
    assert list(together.holes()) == list(apart.holes())
    assert together.free_nbytes == apart.free_nbytes
    again = pieces[keep + 1 :]
    together.take_all(again)
    for offset, size in again:
        apart.take(offset, size)
    assert list(together.holes()) == list(apart.holes())
    assert together.free_nbytes == apart.free_nbytes


def test_the_hole_around_a_byte() -> None:
    extents = FreeExtents(300)
    extents.take(100, 100)
    assert [extents.hole_around(offset) for offset in (0, 99, 200, 299)] == [(0, 100)] * 2 + [(200, 300)] * 2
    assert [extents.hole_around(offset) for offset in (100, 199, 300)] == [None] * 3
    assert FreeExtents(0).hole_around(0) is None
