"""The entries of the table and their extents in the arena: creating, finding, evicting and removing them. Pure."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol

from mmserve.cache_server.allocator.arena_map import ArenaMap
from mmserve.cache_server.allocator.eviction import plan
from mmserve.cache_server.allocator.eviction_queue import EvictionQueue
from mmserve.cache_server.allocator.extents import Extent
from mmserve.cache_server.entries import CacheEntry, Usage, extent_of, usage_of
from mmserve.cache_server.token_ids import TokenRanges
from mmserve.ipc.arena import ALIGNMENT, extent_nbytes, payload_nbytes
from mmserve.messages.cache import AllocItem, Refusal
from mmserve.messages.media import Handle

Sizes = tuple[Sequence[int], Sequence[int]]
"""Arena bytes of embeddings and of compressed bytes, by content."""
EmbeddingChange = tuple[bytes, int]
"""Key of a picture, and the tokens of its embedding, which is complete now; 0: it was removed."""
_NO_CONTENT = AllocItem(b"", 0, 0, 0)


class ExtentMarks(Protocol):
    """The marks in the arena that say who may use an extent. ``ipc.arena.Arena`` writes them."""

    def open(self, handle: Handle) -> None: ...
    def erase(self, handle: Handle) -> None: ...
    def is_being_written(self, handle: Handle) -> bool: ...


class EntryStore:
    """An entry is pinned while it has leases; the others may be evicted.

    Opens each new extent in ``arena`` and erases each that it frees. ``queue`` (empty) decides the order of eviction by
    its policy.
    """

    def __init__(
        self,
        nbytes: int,
        *,
        first_generation: int,
        first_item_id: int,
        first_token: int,
        arena: ExtentMarks,
        queue: EvictionQueue[CacheEntry] | None = None,
    ) -> None:
        self.by_id: dict[int, CacheEntry] = {}
        self.by_spec: dict[AllocItem, CacheEntry] = {}
        """Content -> entry, without failed entries."""
        self.space: ArenaMap[CacheEntry] = ArenaMap(nbytes // ALIGNMENT * ALIGNMENT)
        self.idle: EvictionQueue[CacheEntry] = EvictionQueue() if queue is None else queue
        """Entries without leases."""
        self.counters: Counter[tuple[str, ...]] = Counter()
        """(metric, *labels) -> count since the last snapshot."""
        self.embedding_changes: list[EmbeddingChange] | None = None
        """Since they were taken last; None: nobody takes them."""
        self._generations = itertools.count(first_generation)
        self._item_ids = itertools.count(first_item_id)
        self._ranges = TokenRanges(first_token)
        self._arena = arena

    def known(self, item_ids: Iterable[int]) -> list[CacheEntry]:
        return [self.by_id[item_id] for item_id in item_ids if item_id in self.by_id]

    def usage(self) -> Usage:
        return usage_of(self.by_id.values(), self.space.holes.holes())

    @property
    def evictable_nbytes(self) -> int:
        """Bytes that are free or evictable, contiguous or not."""
        return self.space.holes.free_nbytes + self.idle.nbytes

    def create(self, missing: Sequence[AllocItem], sizes: Sizes, found: Sequence[CacheEntry]) -> Refusal:
        """Make entries for ``missing``, evicting others than ``found`` if needed. Changes nothing if refused."""
        if not missing:
            return ""
        needed = sum(map(sum, sizes))
        if sum(entry.nbytes for entry in found) + needed > self.space.holes.nbytes:
            return "too_large"
        if needed > self.evictable_nbytes:
            return "full"
        spared = [entry for entry in found if entry.idle_since]
        self.space.pin(spared)
        with contextlib.closing(self.idle.ascending()) as candidates:
            placed = plan(self.space, sizes, candidates, self.idle.loss)
        self.space.evictable.free_all([extent for entry in spared for extent in entry.extents])
        if placed is None:
            return "full"
        self._evicted(placed.victims)
        self._add(missing, sizes, placed.offsets)
        return ""

    def evict(self, entries: Sequence[CacheEntry]) -> None:
        """Evict entries without leases."""
        self.space.holes.free_all([extent for entry in entries for extent in entry.extents])
        self._evicted(entries)

    def pin(self, entries: Iterable[CacheEntry]) -> None:
        """Pin entries that got leases. No effect on pinned entries."""
        idle = [entry for entry in entries if entry.idle_since]
        for entry in idle:
            self.idle.discard(entry)
        self.space.pin(idle)

    def unpin(self, entries: Sequence[CacheEntry]) -> None:
        """Make entries without leases evictable."""
        for entry in entries:
            self.idle.add(entry)
        if entries:
            self.space.unpin(entries)

    def remembered_start(self, item: AllocItem) -> int:
        """First token id of content that is out of the table; -1 if it has none."""
        return self._ranges.remembered(item)

    def unlist(self, entry: CacheEntry) -> None:
        """Make the entry unfindable for new requests. Its content keeps its token ids."""
        del self.by_spec[entry.spec]
        self._ranges.remember(entry.spec, entry.token_start)

    def remove(self, entry: CacheEntry) -> Sequence[Handle]:
        """Remove the entry from the table. The caller frees the returned handles."""
        del self.by_id[entry.item_id]
        if self.embedding_changes is not None and entry.stage == "ready":
            self.embedding_changes.append((entry.spec.key, 0))
        if entry.stage != "failed":
            self.unlist(entry)
        return entry.handles

    def free(self, handles: Sequence[Handle]) -> None:
        """Erase the payloads of pinned or removed entries and free their extents."""
        for handle in handles:
            self._arena.erase(handle)
        if handles:
            self.space.free_pinned([extent_of(handle) for handle in handles])

    def end_writing(self, handle: Handle) -> bool:
        """End the right to write the extent. Returns True if a writer is at work, which may go on: the extent must stay
        in place until it has ended (``is_being_written``)."""
        self._arena.erase(handle)
        return self._arena.is_being_written(handle)

    def is_being_written(self, entry: CacheEntry) -> bool:
        return any(map(self._arena.is_being_written, entry.handles))

    def take(self, extents: Iterable[Extent]) -> list[CacheEntry]:
        """Entries, failed ones, that only keep free extents from being used. They are removed like others."""
        taken: list[CacheEntry] = []
        for offset, size in extents:
            handle = Handle(next(self._generations), offset, payload_nbytes(size))
            entry = CacheEntry(next(self._item_ids), _NO_CONTENT, 0, handle, None, size, stage="failed")
            self.space.take(offset, size)
            self.space.used.add([offset], [size], [entry])
            self.by_id[entry.item_id] = entry
            taken.append(entry)
        return taken

    def _evicted(self, entries: Sequence[CacheEntry]) -> None:
        """Remove evicted entries, whose extents are free already."""
        self.counters["mm_cache_evictions", "embed"] += len(entries)
        self.counters["mm_cache_evictions", "data"] += sum(entry.data is not None for entry in entries)
        self.counters["mm_cache_evicted_bytes",] += sum(entry.nbytes for entry in entries)
        for entry in entries:
            self.idle.evicted(entry)
            self.space.used.remove(entry.extents)
            for handle in self.remove(entry):
                self._arena.erase(handle)

    def _add(self, specs: Sequence[AllocItem], sizes: Sizes, offsets: Sequence[int]) -> None:
        """Create entries. ``offsets``: those of all embeddings, then those of all compressed bytes."""
        embed_nbytes, data_nbytes = [spec.embed_nbytes for spec in specs], [spec.data_nbytes for spec in specs]
        embeds = map(Handle, self._generations, offsets, embed_nbytes)
        data = map(Handle, self._generations, offsets[len(specs) :], data_nbytes)
        nbytes = map(operator.add, *sizes)
        item_ids = itertools.islice(self._item_ids, len(specs))
        entries = list(map(CacheEntry, item_ids, specs, self._ranges.starts_of(specs), embeds, data, nbytes, sizes[1]))
        for entry in entries:
            for handle in entry.handles:
                self._arena.open(handle)
        self.space.used.add(offsets, itertools.chain(*sizes), itertools.chain(entries, entries))
        self.by_spec.update(zip(specs, entries, strict=True))
        self.by_id.update({entry.item_id: entry for entry in entries})


def arena_nbytes(specs: Sequence[AllocItem]) -> int:
    """Bytes of all extents of these."""
    return sum(map(sum, sizes_of(specs)))


def sizes_of(specs: Sequence[AllocItem]) -> Sizes:
    embeds = [extent_nbytes(spec.embed_nbytes) for spec in specs]
    return embeds, [extent_nbytes(spec.data_nbytes) for spec in specs]
