"""One image in the table: its extents, its stage and its leases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Literal, NamedTuple

import msgspec

from mmserve.cache_server.allocator.extents import Extent
from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem, ItemState, MediaRecord
from mmserve.messages.media import Handle

Stage = Literal["writing", "vacant", "data", "ready", "failed"]
"""How far an entry is. HTTP workers are told an ItemState and visual servers an EmbedState:

    stage     compressed bytes   embedding   ItemState                         EmbedState
    vacant    to be written      missing     write: the caller is the writer   pending
    writing   being written      missing     write (its writer) or wait        pending
    data      complete           missing     data                              pending
    ready     freed              complete    hit                               ready
    failed    complete           missing     gone                              gone
    (none)    no such entry      -           gone                              gone

An entry is vacant when it is new, and again when its writer has failed or died. A failed entry cannot be encoded: no
request finds it any more, and it is removed with its last lease.
"""
Usage = dict[tuple[str, str], tuple[int, int]]
"""(kind, state) -> (extents, bytes); kind data | embed | hole, state writing | ready | free. This is about extents, as
in the metrics: "ready" means that the extent's payload is complete."""


class Lease(NamedTuple):
    """What entries are leased to: a request of an owner process."""

    owner: str
    request_id: str


ENCODER = ""
"""Request id of the leases that keep entries in place while their owner, a visual server, encodes them."""


class CacheEntry(msgspec.Struct, eq=False, gc=False):
    """Mutable; owned by MediaTable. Not tracked by the garbage collector: one call may create hundreds."""

    item_id: int
    spec: AllocItem
    token_start: int
    embed: Handle
    data: Handle | None
    nbytes: int
    """Arena bytes of the entry's extents."""
    data_nbytes: int = 0
    """Arena bytes of the compressed image, part of ``nbytes``."""
    writer: Lease | None = None
    stage: Stage = "vacant"
    num_leases: int = 0
    # The next three are EvictionQueue's.
    priority: float = 0.0
    idle_since: int = 0
    num_uses: int = 0

    def state_for(self, lease: Lease) -> ItemState:
        """The state to tell a request that leases the entry; makes it the writer if there is none."""
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

    def writable_by(self, lease: Lease) -> Handle | None:
        """The extent that the owner of the lease may be writing."""
        if self.stage == "writing" and self.writer == lease:
            return self.data
        return self.embed if self.stage == "data" and lease.request_id == ENCODER else None

    @property
    def cost(self) -> int:
        """Cost of computing the entry again, for eviction. Encoding time is proportional to the tokens."""
        return self.spec.num_tokens if self.stage == "ready" else 0

    @property
    def handles(self) -> tuple[Handle, ...]:
        return (self.embed,) if self.data is None else (self.embed, self.data)

    @property
    def extents(self) -> tuple[Extent, ...]:
        embed = self.embed.offset, self.nbytes - self.data_nbytes
        return (embed,) if self.data is None else (embed, (self.data.offset, self.data_nbytes))


def extent_of(handle: Handle) -> Extent:
    """(offset, size) of the handle's payload with its header and trailer."""
    return handle.offset, extent_nbytes(handle.nbytes)


def usage_of(entries: Collection[CacheEntry], holes: Iterable[tuple[int, int]]) -> Usage:
    """Adds up to the whole arena; pairs without an extent are left out. ``holes``: (start, end) of each."""
    sizes: dict[tuple[str, str], list[int]] = defaultdict(list)
    sizes["embed", "ready"] = [entry.nbytes for entry in entries if entry.data is None]
    for entry in [entry for entry in entries if entry.data is not None]:
        sizes["embed", "writing"].append(entry.nbytes - entry.data_nbytes)
        sizes["data", "ready" if entry.stage in ("data", "failed") else "writing"].append(entry.data_nbytes)
    sizes["hole", "free"] = [end - start for start, end in holes]
    return {label: (len(each), sum(each)) for label, each in sizes.items() if each}
