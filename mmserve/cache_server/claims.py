"""How much of the arena live requests hold: compressed bytes and embeddings, each within a budget of its own.

Counts an item from its first lease to its last. What nobody holds is a cache, bounded by the arena alone. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mmserve.budget import Budget
from mmserve.cache_server.item import Item
from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem, Refusal
from mmserve.messages.media import Handle


class Claims:
    """Two budgets, in bytes of extents."""

    def __init__(self, data_nbytes: int, embed_nbytes: int) -> None:
        self.data = Budget(data_nbytes)
        self.embeds = Budget(embed_nbytes)

    def refusal(self, missing: Sequence[AllocItem], found: Iterable[Item]) -> Refusal:
        """May a request hold these as well? ``missing`` are in the table of nobody yet; of ``found`` some are held."""
        idle = [item for item in found if not item.num_leases]
        data = sum([extent_nbytes(spec.data_nbytes) for spec in missing])
        data += sum([_nbytes(item.data) for item in idle])
        embeds = sum([extent_nbytes(spec.embed_nbytes) for spec in missing])
        embeds += sum([_nbytes(item.embed) for item in idle])
        if data > self.data.limit_nbytes or embeds > self.embeds.limit_nbytes:
            return "too_large"
        return "" if self.data.fits(data) and self.embeds.fits(embeds) else "full"

    def hold(self, item: Item) -> None:
        """It has its first lease."""
        self.embeds.take(_nbytes(item.embed))
        self.data.take(_nbytes(item.data))

    def let_go(self, item: Item) -> None:
        """It has lost its last lease."""
        self.embeds.give(_nbytes(item.embed))
        self.data.give(_nbytes(item.data))

    def encoded(self, data: Handle) -> None:
        """A held item has given its compressed bytes back."""
        self.data.give(_nbytes(data))


def _nbytes(handle: Handle | None) -> int:
    return 0 if handle is None else extent_nbytes(handle.nbytes)
