"""Where new extents go and which entries are evicted for them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from mmserve.cache_server.allocator import eviction
from mmserve.cache_server.allocator.arena_map import ArenaMap
from mmserve.cache_server.allocator.eviction import Plan
from mmserve.cache_server.allocator.extents import Extent, FreeExtents


@dataclass(eq=False)
class _Cached:
    name: int
    extents: tuple[Extent, ...]
    loss: float


def occupy(space: ArenaMap[_Cached], cached: _Cached) -> None:
    offsets, sizes = zip(*cached.extents, strict=True)
    space.used.add(offsets, sizes, [cached] * len(offsets))


def plan(extents: FreeExtents, groups: Sequence[Sequence[int]], cached: Sequence[_Cached]) -> Plan[_Cached] | None:
    """With these candidates, in this order; nothing else may be evicted."""
    space: ArenaMap[_Cached] = ArenaMap(0)
    space.holes, space.evictable = extents, deepcopy(extents)
    for each in cached:
        occupy(space, each)
    space.unpin(cached)
    found = eviction.plan(space, groups, cached, lambda each: each.loss)
    still_there = [each for each in cached if found is None or each not in found.victims]
    left = deepcopy(extents)
    left.free_all([extent for each in still_there for extent in each.extents])
    assert list(space.evictable.holes()) == list(left.holes())
    return found


def _full(*sizes: int) -> tuple[FreeExtents, list[_Cached]]:
    """An arena full of items of these sizes, the first the least valuable."""
    extents, cached, offset = FreeExtents(sum(sizes)), [], 0
    for number, size in enumerate(sizes):
        extents.take(offset, size)
        cached.append(_Cached(number, ((offset, size),), float(number + 1)))
        offset += size
    return extents, cached


def test_the_least_valuable_entry_is_evicted_first() -> None:
    extents, cached = _full(10, 10, 10)
    found = plan(extents, [[10]], cached)
    assert found is not None
    assert found.victims == [cached[0]]
    assert found.offsets == [0]


def test_entries_whose_eviction_does_not_help_are_spared() -> None:
    """0 and 2 go first by value, but only 2 has a neighbour that is not worth much either."""
    extents, cached = _full(10, 10, 10, 10)
    order = [cached[0], cached[2], cached[3], cached[1]]
    cached[1].loss = 9.0
    found = plan(extents, [[20]], order)
    assert found is not None
    assert {victim.name for victim in found.victims} == {2, 3}
    assert extents.free_nbytes == 0, "the spared entry has its place"


def test_the_cheapest_window_of_a_long_run_is_evicted() -> None:
    """Whichever of the outer two goes takes the middle with it; the one on the right is worth less."""
    extents, cached = _full(10, 10, 10)
    cached[0].loss, cached[2].loss, cached[1].loss = 1.0, 0.5, 2.0
    found = plan(extents, [[20]], [cached[2], cached[0], cached[1]])
    assert found is not None
    assert {victim.name for victim in found.victims} == {1, 2}
    assert found.offsets == [10]


def test_a_plan_is_all_or_nothing() -> None:
    extents, cached = _full(10, 10, 10)
    assert plan(extents, [[10, 25]], cached) is None
    assert plan(extents, [[10, 20]], cached[:2]) is None
    assert extents.free_nbytes == 0


def test_both_extents_of_an_entry_are_evicted_together() -> None:
    extents = FreeExtents(40)
    extents.take(0, 40)
    both = _Cached(7, ((0, 10), (30, 10)), 1.0)
    found = plan(extents, [[10]], [both])
    assert found is not None
    assert found.victims == [both]
    assert extents.free_nbytes == 10


def test_each_group_is_placed_in_one_hole() -> None:
    extents = FreeExtents(100)
    extents.take(40, 10)
    found = plan(extents, [[10, 20], [25, 25]], ())
    assert found is not None
    assert found.offsets == [0, 10, 50, 75]


def test_without_one_long_hole_small_holes_are_filled_and_nothing_is_evicted() -> None:
    extents, cached = _full(10, 10, 10, 10, 10)
    for number in (0, 2, 4):
        extents.free(number * 10, 10)
    found = plan(extents, [[10, 10], [10]], [cached[1], cached[3]])
    assert found is not None
    assert found.victims == []
    assert sorted(found.offsets) == [0, 20, 40]


def test_a_small_extent_does_not_take_the_only_place_of_a_large_one() -> None:
    """The small one fits into the hole at once, but then no 30 bytes in one piece can be had."""
    extents, cached = _full(20, 10, 10)
    extents.free(20, 10)
    found = plan(extents, [[30, 10]], [cached[0], cached[2]])
    assert found is not None
    assert sorted(found.offsets) == [0, 30]


pieces = st.lists(st.tuples(st.integers(1, 20), st.sampled_from(["cached", "hole", "held"])), min_size=1, max_size=14)
groups = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=4), min_size=1, max_size=2)


def _arena(pieces: list[tuple[int, str]], random: random.Random) -> tuple[FreeExtents, list[_Cached]]:
    """Pieces in a row; the cached ones, some with two extents, in a random order of value."""
    extents = FreeExtents(sum(size for size, _ in pieces))
    places, offset = list[Extent](), 0
    for size, what in pieces:
        if what != "hole":
            extents.take(offset, size)
        if what == "cached":
            places.append((offset, size))
        offset += size
    random.shuffle(places)
    cached = list[_Cached]()
    while places:
        count = random.choice((1, 1, 2))
        cached.append(_Cached(len(cached), tuple(places[:count]), float(len(cached) // 2)))
        places = places[count:]
    return extents, cached


@given(pieces, groups, st.randoms(use_true_random=False))
def test_every_evicted_entry_was_in_the_way_and_all_others_keep_their_places(
    pieces: list[tuple[int, str]], groups: list[list[int]], random: random.Random
) -> None:
    extents, cached = _arena(pieces, random)
    before = deepcopy(extents)
    found = plan(extents, groups, cached)
    sizes = [size for group in groups for size in group]
    if found is None:
        assert list(extents.holes()) == list(before.holes()), "what cannot be done is undone"
        return
    placed = sorted(zip(found.offsets, sizes, strict=True))
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(placed))
    for victim in found.victims:
        assert any(o < at + n and at < o + length for o, length in victim.extents for at, n in placed)
    expected = FreeExtents(extents.nbytes)
    for start, end in _taken(before):
        expected.take(start, end - start)
    expected.free_all([extent for victim in found.victims for extent in victim.extents])
    for offset, size in placed:
        expected.take(offset, size)
    assert list(extents.holes()) == list(expected.holes())


def _taken(extents: FreeExtents) -> list[tuple[int, int]]:
    edges = [0, *(edge for hole in extents.holes() for edge in hole), extents.nbytes]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]


@given(pieces, groups, st.randoms(use_true_random=False))
def test_extents_that_fit_one_by_one_into_holes_evict_nothing(
    pieces: list[tuple[int, str]], groups: list[list[int]], random: random.Random
) -> None:
    """Lying together is a wish: it never costs space."""
    extents, cached = _arena(pieces, random)
    one_by_one = deepcopy(extents)
    sizes = sorted((size for group in groups for size in group), reverse=True)
    if all(one_by_one.alloc(size) is not None for size in sizes):
        found = plan(extents, groups, cached)
        assert found is not None
        assert found.victims == []


@given(pieces, st.integers(1, 60), st.randoms(use_true_random=False))
def test_an_extent_is_refused_only_when_it_cannot_fit(
    pieces: list[tuple[int, str]], size: int, random: random.Random
) -> None:
    extents, cached = _arena(pieces, random)
    everything = deepcopy(extents)
    everything.free_all([extent for item in cached for extent in item.extents])
    assert (plan(extents, [[size]], cached) is None) == (everything.smallest_hole(size) is None)


NEIGHBOURS = 20


def _crowded(num_cached: int) -> tuple[ArenaMap[_Cached], list[_Cached]]:
    """Full of items of one byte, one in NEIGHBOURS held; at the end, where the most valuable lie, two are not."""
    space: ArenaMap[_Cached] = ArenaMap(num_cached)
    space.take(0, num_cached)
    everything = [_Cached(at, ((at, 1),), float(at + 1)) for at in range(num_cached)]
    for each in everything:
        occupy(space, each)
    cached = [each for each in everything if each.name % NEIGHBOURS or each.name >= num_cached - NEIGHBOURS]
    space.unpin(cached)
    return space, cached


def _looked_at(num_cached: int, size: int) -> tuple[Plan[_Cached] | None, int]:
    """How many were drawn as candidates, or asked what they are worth."""
    space, cached = _crowded(num_cached)
    looked_at = 0

    def drawn() -> Iterator[_Cached]:
        nonlocal looked_at
        for each in cached:
            looked_at += 1
            yield each

    def loss(each: _Cached) -> float:
        nonlocal looked_at
        looked_at += 1
        return each.loss

    return eviction.plan(space, [[size]], drawn(), loss), looked_at


def test_lack_of_room_is_known_without_looking_at_entries() -> None:
    assert _looked_at(4000, 2 * NEIGHBOURS) == (None, 0)


def test_the_cost_of_finding_the_only_room_does_not_grow_with_the_entries() -> None:
    """What is worth least has no room around it."""
    (few, looked_at), (many, looked_at_then) = _looked_at(1000, NEIGHBOURS + 5), _looked_at(10_000, NEIGHBOURS + 5)
    assert few is not None
    assert many is not None
    assert len(few.victims) == len(many.victims) == NEIGHBOURS + 5
    assert looked_at_then == looked_at < 1000
