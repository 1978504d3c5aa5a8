"""Ranges of virtual token ids: stable per content, never given twice."""

from __future__ import annotations

from mmserve.cache_server.token_ranges import TokenRanges
from mmserve.messages.cache import AllocItem


def _item(number: int, num_tokens: int = 3) -> AllocItem:
    return AllocItem(number.to_bytes(16, "big"), num_tokens, 1, 1)


def test_the_same_content_has_the_same_ids_and_others_have_others() -> None:
    ranges = TokenRanges(100)
    assert ranges.starts_of([_item(n) for n in (1, 2, 1, 3)]) == [100, 103, 100, 106]
    assert ranges.starts_of([_item(4), _item(2)]) == [109, 103]


def test_forgotten_ids_are_not_given_again() -> None:
    ranges = TokenRanges(100, limit=2)
    ranges.starts_of([_item(1), _item(2)])
    ranges.starts_of([_item(1)])
    ranges.starts_of([_item(3)])
    assert ranges.starts_of([_item(1)]) == [100]
    assert ranges.starts_of([_item(2)]) == [109]


def test_what_is_remembered_is_bounded() -> None:
    ranges = TokenRanges(100, limit=80)
    for first in range(0, 1000, 10):
        ranges.starts_of([_item(n) for n in range(first, first + 10)])
        assert len(ranges._starts) <= 80
    assert ranges.starts_of([_item(n) for n in range(930, 1000)]) == [100 + 3 * n for n in range(930, 1000)]
