"""How much of the arena live requests hold: compressed bytes and embeddings, each within a budget of its own.

Counts an item from its first lease to its last. What nobody holds is a cache, bounded by the arena alone. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mmserve.cache_server.entries import CacheEntry
from mmserve.messages.cache import Refusal
from mmserve.runtime.byte_budget import ByteBudget


class LeaseBudgets:
    """Two budgets, in bytes of extents."""

    def __init__(self, data_nbytes: int, embed_nbytes: int) -> None:
        self.data = ByteBudget(data_nbytes)
        self.embeds = ByteBudget(embed_nbytes)

    def refusal(self, data_nbytes: int, embed_nbytes: int, found: Iterable[CacheEntry]) -> Refusal:
        """May a request hold so much, not yet in the table, and ``found`` as well, of which some are held?"""
        found_data, found_embeds = _nbytes([item for item in found if not item.num_leases])
        data, embeds = data_nbytes + found_data, embed_nbytes + found_embeds
        if data > self.data.limit_nbytes or embeds > self.embeds.limit_nbytes:
            return "too_large"
        return "" if self.data.fits(data) and self.embeds.fits(embeds) else "full"

    def hold(self, items: Sequence[CacheEntry]) -> None:
        """They have their first lease."""
        data, embeds = _nbytes(items)
        self.embeds.take(embeds)
        self.data.take(data)

    def let_go(self, items: Sequence[CacheEntry]) -> None:
        """They have lost their last lease."""
        data, embeds = _nbytes(items)
        self.embeds.give(embeds)
        self.data.give(data)

    def encoded(self, data_nbytes: int) -> None:
        """A held item has given its compressed bytes back."""
        self.data.give(data_nbytes)


def _nbytes(items: Sequence[CacheEntry]) -> tuple[int, int]:
    """Of their compressed bytes, of their embeddings."""
    data = sum([item.data_nbytes for item in items])
    return data, sum([item.nbytes for item in items]) - data
