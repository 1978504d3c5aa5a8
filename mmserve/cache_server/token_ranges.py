"""Virtual token ids: each content keeps one range for the whole epoch, and no id ever means two contents.

A range outlives the item's eviction, so that a prefix cache over token ids still matches when the item is back.
"""

from __future__ import annotations

from collections import OrderedDict

from mmserve.messages.cache import AllocItem

MAX_REMEMBERED = 1 << 16


class TokenRanges:
    """Content -> first token id. Forgets the least recently asked beyond ``limit``; ids are never given again."""

    def __init__(self, first_token: int, limit: int = MAX_REMEMBERED) -> None:
        self._next = first_token
        self._limit = limit
        self._starts: OrderedDict[AllocItem, int] = OrderedDict()

    def start_of(self, item: AllocItem) -> int:
        """First of the item's ``num_tokens`` ids; the same item has the same ids while it is remembered."""
        start = self._starts.get(item)
        if start is not None:
            self._starts.move_to_end(item)
            return start
        start = self._starts[item] = self._next
        self._next += item.num_tokens
        if len(self._starts) > self._limit:
            self._starts.popitem(last=False)
        return start
