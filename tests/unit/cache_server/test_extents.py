"""Free space: best fit, exact places, neighbours joined."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from mmserve.cache_server.eviction import Victim, plan
from mmserve.cache_server.extents import Extents


def test_the_smallest_hole_that_fits_is_used() -> None:
    extents = Extents(1000)
    extents.take(100, 100)
    extents.take(400, 100)
    assert sorted(extents.holes()) == [(0, 100), (200, 400), (500, 1000)]
    assert extents.alloc(150) == 200
    assert extents.alloc(60) == 0
    assert extents.alloc(501) is None


def test_freed_neighbours_become_one_hole() -> None:
    extents = Extents(300)
    for offset in (0, 100, 200):
        extents.take(offset, 100)
    for offset in (0, 200, 100):
        extents.free(offset, 100)
    assert list(extents.holes()) == [(0, 300)]
    assert extents.free_nbytes == 300


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60))
def test_extents_never_overlap_and_sizes_add_up(steps: list[tuple[bool, int]]) -> None:
    extents, live = Extents(256), dict[int, int]()
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


def _full(*sizes: int) -> tuple[Extents, list[Victim]]:
    """An arena full of items of these sizes, the first the least valuable."""
    extents, victims, offset = Extents(sum(sizes)), [], 0
    for number, size in enumerate(sizes):
        extents.take(offset, size)
        victims.append(Victim(number, ((offset, size),), float(number + 1)))
        offset += size
    return extents, victims


def test_eviction_takes_the_least_valuable_first() -> None:
    extents, victims = _full(10, 10, 10)
    found = plan(extents, [10], victims)
    assert found is not None
    assert [victim.item_id for victim in found.victims] == [0]
    assert found.offsets == (0,)


def test_eviction_spares_what_does_not_help() -> None:
    """0 and 2 go first by value, but only 2 and 3 are next to each other."""
    extents, victims = _full(10, 10, 10, 10)
    order = [victims[0], victims[2], victims[3], victims[1]]
    found = plan(extents, [20], order)
    assert found is not None
    assert {victim.item_id for victim in found.victims} == {2, 3}
    assert extents.free_nbytes == 0, "planning changes nothing"


def test_a_plan_is_all_or_nothing() -> None:
    extents, victims = _full(10, 10, 10)
    assert plan(extents, [10, 25], victims) is None
    assert plan(extents, [10, 20], victims[:2]) is None


def test_an_item_with_two_extents_goes_as_a_whole() -> None:
    extents = Extents(40)
    extents.take(0, 40)
    both = Victim(7, ((0, 10), (30, 10)), 1.0)
    found = plan(extents, [10], [both])
    assert found is not None
    assert found.victims == (both,)
    assert found.extents.free_nbytes == 10


@given(
    st.lists(st.integers(1, 20), min_size=1, max_size=12),
    st.lists(st.integers(1, 30), min_size=1, max_size=4),
    st.randoms(use_true_random=False),
)
def test_every_evicted_item_was_needed(pieces: list[int], wanted: list[int], random: object) -> None:
    extents, victims = _full(*pieces)
    found = plan(extents, wanted, victims)
    if found is None:
        return
    placed = sorted(zip(found.offsets, wanted, strict=True))
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(placed))
    for victim in found.victims:
        ((offset, size),) = victim.extents
        assert any(offset < place + length and place < offset + size for place, length in placed)
