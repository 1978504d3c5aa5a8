"""The order of eviction: recency and the cost per byte of making an item again."""

from __future__ import annotations

import contextlib

from mmserve.cache_server.allocator.eviction_queue import EvictionPolicy, EvictionQueue
from mmserve.cache_server.entries import CacheEntry
from mmserve.messages.cache import AllocItem
from mmserve.messages.media import Handle


def _item(number: int, *, num_tokens: int = 1, nbytes: int = 64, ready: bool = True) -> CacheEntry:
    spec, embed = AllocItem(bytes(16), num_tokens, 0, nbytes), Handle(number, 0, nbytes)
    return CacheEntry(number, spec, 0, embed, None, nbytes, stage="ready" if ready else "data")


def _order(idle: EvictionQueue) -> list[int]:
    with contextlib.closing(idle.ascending()) as items:
        return [item.item_id for item in items]


def test_of_equal_values_the_least_recently_used_comes_first() -> None:
    idle, items = EvictionQueue(), [_item(number) for number in range(3)]
    for item in items:
        idle.add(item)
    idle.discard(items[0])
    idle.add(items[0])
    assert _order(idle) == [1, 2, 0]
    assert idle.nbytes == 3 * 64


def test_small_entries_that_are_expensive_to_make_stay_longer() -> None:
    idle = EvictionQueue()
    idle.add(_item(0, num_tokens=8, nbytes=64))
    idle.add(_item(1, num_tokens=8, nbytes=128))
    idle.add(_item(2, num_tokens=2, nbytes=64))
    idle.add(_item(3, num_tokens=99, ready=False))
    assert _order(idle) == [3, 2, 1, 0]


def test_evictions_raise_the_value_of_later_entries() -> None:
    idle, dear, cheap = EvictionQueue(), _item(0, num_tokens=8), _item(1, num_tokens=4)
    idle.add(dear)
    idle.add(cheap)
    idle.evicted(cheap)
    idle.add(_item(2, num_tokens=5))
    assert _order(idle) == [0, 2]
    assert idle.nbytes == 2 * 64


def test_iterating_over_some_entries_removes_none() -> None:
    idle = EvictionQueue()
    for number in range(4):
        idle.add(_item(number))
    with contextlib.closing(idle.ascending()) as items:
        assert next(items).item_id == 0
        idle.evicted(next(items))
    assert _order(idle) == [0, 2, 3]


def test_a_thousand_uses_of_one_entry_leave_one_entry() -> None:
    idle, item, other = EvictionQueue(), _item(0), _item(1)
    idle.add(other)
    for _ in range(5000):
        idle.add(item)
        idle.discard(item)
    idle.add(item)
    assert len(idle._heap) < 2000
    assert _order(idle) == [1, 0]
    assert idle.nbytes == 2 * 64


def test_discarding_twice_is_harmless() -> None:
    idle, item = EvictionQueue(), _item(0)
    idle.add(item)
    idle.discard(item)
    idle.discard(item)
    assert (_order(idle), idle.nbytes) == ([], 0)


def test_a_policy_decides_the_order_and_the_loss() -> None:
    lru = EvictionPolicy(priority=lambda entry, floor: 0.0, loss=lambda entry, age: 1 / age)
    idle, items = EvictionQueue(lru), [_item(0, num_tokens=99), _item(1, num_tokens=9), _item(2)]
    for item in items:
        idle.add(item)
    assert _order(idle) == [0, 1, 2]
    assert [idle.loss(item) for item in items] == [1 / 3, 1 / 2, 1]


def test_the_loss_falls_with_every_use_of_another_entry() -> None:
    idle, item, other = EvictionQueue(), _item(0, num_tokens=12), _item(1)
    idle.add(item)
    idle.discard(item)
    idle.add(item)
    assert idle.loss(item) == 12 * 2
    idle.add(other)
    assert idle.loss(item) == 12 * 2 / 2
