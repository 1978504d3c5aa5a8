"""Ranges of virtual token ids: stable per content, never reused."""

from __future__ import annotations

from mmserve.cache_server.token_ids import TokenRanges
from mmserve.messages.cache import AllocItem


def _item(number: int, num_tokens: int = 3) -> AllocItem:
    return AllocItem(number.to_bytes(16, "big"), num_tokens, 1, 1)


def test_a_content_that_comes_back_has_the_same_ids_and_others_have_different_ones() -> None:
    ranges = TokenRanges(100)
    assert ranges.starts_of([_item(n) for n in (1, 2, 3)]) == [100, 103, 106]
    ranges.remember(_item(1), 100)
    ranges.remember(_item(3), 106)
    assert [ranges.remembered(_item(n)) for n in (1, 2, 3)] == [100, -1, 106]
    assert ranges.starts_of([_item(4), _item(3)]) == [109, 106]


def test_dropped_ids_are_not_reused() -> None:
    ranges = TokenRanges(100, limit=2)
    for item, start in zip([_item(n) for n in range(3)], ranges.starts_of([_item(n) for n in range(3)]), strict=True):
        ranges.remember(item, start)
    assert ranges.starts_of([_item(2), _item(1), _item(0)]) == [106, 103, 109]


def test_the_number_of_remembered_ranges_is_bounded_and_the_oldest_are_dropped() -> None:
    ranges, items = TokenRanges(100, limit=80), [_item(n) for n in range(1000)]
    for item, start in zip(items, ranges.starts_of(items), strict=True):
        ranges.remember(item, start)
        assert len(ranges._starts) <= 80
    assert ranges.starts_of(items[930:]) == [100 + 3 * n for n in range(930, 1000)]
