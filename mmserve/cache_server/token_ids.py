"""Virtual token ids: each content keeps one range for the whole epoch, and no id ever means two contents.

A range outlives the item's eviction, so that a prefix cache over token ids still matches when the item is back. Holds
the ranges of contents that are out of the table; whoever is in it carries its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from mmserve.messages.cache import AllocItem

MAX_REMEMBERED = 1 << 16
_FORGOTTEN_SHARE = 8


class TokenRanges:
    """Content -> first token id. Of the contents gone, forgets the first beyond ``limit``, and some more (an eighth)
    with them; ids are never given again."""

    def __init__(self, first_token: int, limit: int = MAX_REMEMBERED) -> None:
        self._next = first_token
        self._limit = limit
        self._gone: dict[AllocItem, int] = {}
        """The first to go first."""

    def starts_of(self, items: Sequence[AllocItem]) -> list[int]:
        """Contents come into the table: the first of the ``num_tokens`` ids of each, its own if it was here before."""
        if self._gone.keys().isdisjoint(items):
            *starts, self._next = itertools.accumulate([item.num_tokens for item in items], initial=self._next)
            return starts
        found: list[int] = []
        for item in items:
            start = self._gone.pop(item, None)
            if start is None:
                start = self._next
                self._next += item.num_tokens
            found.append(start)
        return found

    def remember(self, item: AllocItem, start: int) -> None:
        """A content leaves the table."""
        self._gone[item] = start
        if (excess := len(self._gone) - self._limit) > 0:
            for forgotten in list(itertools.islice(self._gone, excess + self._limit // _FORGOTTEN_SHARE)):
                del self._gone[forgotten]
