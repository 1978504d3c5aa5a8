"""Virtual token ids: each content has one range of ids for the whole epoch, and no id ever stands for two contents.

A range outlives its entry's eviction, so that a prefix cache over token ids still matches when the content is back.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from mmserve.messages.cache import AllocItem

MAX_REMEMBERED = 1 << 16
_DROPPED_SHARE = 8


class TokenRanges:
    """Ranges of contents that are out of the table; an entry carries its own.

    Beyond ``limit`` contents the oldest are dropped, an eighth of the limit at once. Ids are never reused.
    """

    def __init__(self, first_token: int, limit: int = MAX_REMEMBERED) -> None:
        self._next = first_token
        self._limit = limit
        self._starts: dict[AllocItem, int] = {}
        """Content -> first id; the oldest first."""

    def starts_of(self, items: Sequence[AllocItem]) -> list[int]:
        """First of the ``num_tokens`` ids of each content that enters the table; its earlier one if remembered."""
        if self._starts.keys().isdisjoint(items):
            *starts, self._next = itertools.accumulate([item.num_tokens for item in items], initial=self._next)
            return starts
        found: list[int] = []
        for item in items:
            start = self._starts.pop(item, None)
            if start is None:
                start = self._next
                self._next += item.num_tokens
            found.append(start)
        return found

    def remembered(self, item: AllocItem) -> int:
        """First id of content that is out of the table; -1 if it has none."""
        return self._starts.get(item, -1)

    def remember(self, item: AllocItem, start: int) -> None:
        """Keep the ids of evicted content for its return. Beyond the limit the oldest are dropped."""
        self._starts[item] = start
        if (excess := len(self._starts) - self._limit) > 0:
            for dropped in list(itertools.islice(self._starts, excess + self._limit // _DROPPED_SHARE)):
                del self._starts[dropped]
