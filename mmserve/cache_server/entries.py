"""One image in the table: its extents, its stage of life and who holds it. Changes nothing else."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from mmserve.cache_server.allocator.extents import Extent
from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem, ItemState, MediaRecord
from mmserve.messages.media import Handle

Stage = Literal["writing", "vacant", "data", "ready", "failed"]
"""writing: its writer puts the bytes there. vacant: the writer gave up or died, the next one who asks takes over.
data: bytes ready, to be encoded. ready: embedding ready, data given back. failed: cannot be encoded; out of the
table, gone with its last lease."""


class Lease(NamedTuple):
    """Who holds items: a request of an owner process."""

    owner: str
    request_id: str


class CacheEntry(msgspec.Struct, eq=False, gc=False):
    """Mutable; owned by MediaTable. Not tracked by the garbage collector: a call may create hundreds."""

    item_id: int
    spec: AllocItem
    token_start: int
    embed: Handle
    data: Handle | None
    nbytes: int
    """Arena bytes of its extents."""
    data_nbytes: int = 0
    """Of them, those of its compressed bytes."""
    writer: Lease | None = None
    stage: Stage = "vacant"
    num_leases: int = 0
    priority: float = 0.0
    """What its eviction would lose, and since which use nobody holds it (0: it is held); both are EvictionQueue's."""
    idle_since: int = 0
    num_uses: int = 0
    """How often it has become idle; EvictionQueue's too."""

    def state_for(self, lease: Lease) -> ItemState:
        """What the holder of ``lease`` is told; makes it the writer when there is none."""
        if self.stage == "ready":
            return "hit"
        if self.stage == "vacant":
            self.stage, self.writer = "writing", lease
            return "write"
        if self.stage == "writing":
            return "write" if self.writer == lease else "wait"
        return "gone" if self.stage == "failed" else "data"

    def record_for(self, lease: Lease) -> MediaRecord:
        """The reply to an allocation by ``lease``."""
        return MediaRecord(self.item_id, self.token_start, self.state_for(lease), self.data, self.embed)

    @property
    def handles(self) -> tuple[Handle, ...]:
        return (self.embed,) if self.data is None else (self.embed, self.data)

    @property
    def extents(self) -> tuple[Extent, ...]:
        """For the eviction's plan."""
        embed = self.embed.offset, self.nbytes - self.data_nbytes
        return (embed,) if self.data is None else (embed, (self.data.offset, self.data_nbytes))


def extent_of(handle: Handle) -> Extent:
    """(offset, size) that the handle's payload occupies with its header and trailer."""
    return handle.offset, extent_nbytes(handle.nbytes)
