"""Limits of what live requests may lease in the arena: compressed bytes and embeddings, each with a budget. Pure.

An entry counts from its first lease to its last. Entries without leases are a cache, bounded by the arena alone.
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
        """Why a request may not lease so many bytes of new entries together with the ``found`` ones; "": it may."""
        found_data, found_embeds = _nbytes([entry for entry in found if not entry.num_leases])
        data, embeds = data_nbytes + found_data, embed_nbytes + found_embeds
        if data > self.data.limit_nbytes or embeds > self.embeds.limit_nbytes:
            return "too_large"
        return "" if self.data.fits(data) and self.embeds.fits(embeds) else "full"

    def take(self, entries: Sequence[CacheEntry]) -> None:
        """Count entries that get their first lease."""
        data, embeds = _nbytes(entries)
        self.embeds.take(embeds)
        self.data.take(data)

    def give(self, entries: Sequence[CacheEntry]) -> None:
        """Stop counting entries that lost their last lease."""
        data, embeds = _nbytes(entries)
        self.embeds.give(embeds)
        self.data.give(data)

    def give_data(self, data_nbytes: int) -> None:
        """Stop counting the compressed bytes of a leased entry that was encoded."""
        self.data.give(data_nbytes)


def _nbytes(entries: Sequence[CacheEntry]) -> tuple[int, int]:
    """(bytes of compressed images, bytes of embeddings)."""
    data = sum([entry.data_nbytes for entry in entries])
    return data, sum([entry.nbytes for entry in entries]) - data
