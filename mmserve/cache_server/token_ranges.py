"""Virtual token ids: each content keeps one range for the whole epoch, and no id ever means two contents.

A range outlives the item's eviction, so that a prefix cache over token ids still matches when the item is back.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from mmserve.messages.cache import AllocItem

MAX_REMEMBERED = 1 << 16
_FORGOTTEN_SHARE = 8


class TokenRanges:
    """Content -> first token id. Forgets the least recently asked beyond ``limit``, some more (an eighth) with them;
    ids are never given again."""

    def __init__(self, first_token: int, limit: int = MAX_REMEMBERED) -> None:
        self._next = first_token
        self._limit = limit
        self._starts: dict[AllocItem, int] = {}
        """The least recently asked first."""

    def starts_of(self, items: Iterable[AllocItem]) -> list[int]:
        """First of the ``num_tokens`` ids of each; the same item has the same ids while it is remembered."""
        found: list[int] = []
        for item in items:
            start = self._starts.pop(item, None)
            if start is None:
                start = self._next
                self._next += item.num_tokens
            self._starts[item] = start
            found.append(start)
        if (excess := len(self._starts) - self._limit) > 0:
            for item in list(itertools.islice(self._starts, excess + self._limit // _FORGOTTEN_SHARE)):
                del self._starts[item]
        return found
