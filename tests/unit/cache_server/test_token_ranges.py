"""Ranges of virtual token ids: stable per content, never given twice."""

from __future__ import annotations

from mmserve.cache_server.token_ranges import TokenRanges
from mmserve.messages.cache import AllocItem


def _item(number: int, num_tokens: int = 3) -> AllocItem:
    return AllocItem(number.to_bytes(16, "big"), num_tokens, 1, 1)


def test_the_same_content_has_the_same_ids_and_others_have_others() -> None:
    ranges = TokenRanges(100)
    assert [ranges.start_of(_item(n)) for n in (1, 2, 1, 3)] == [100, 103, 100, 106]


def test_forgotten_ids_are_not_given_again() -> None:
    ranges = TokenRanges(100, limit=2)
    for number in (1, 2, 1, 3):
        ranges.start_of(_item(number))
    assert ranges.start_of(_item(1)) == 100
    assert ranges.start_of(_item(2)) == 109
