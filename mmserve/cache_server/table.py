"""The table of images: leases, stages of encoding, and the calls on them. Pure: no lock, no clock, no payload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from mmserve.cache_server.allocator.eviction_queue import EvictionQueue
from mmserve.cache_server.allocator.extents import Extent
from mmserve.cache_server.arena_drawing import extents_of
from mmserve.cache_server.entries import ENCODER, CacheEntry, Lease, Stage, Usage
from mmserve.cache_server.entry_store import EmbeddingChange, EntryStore, ExtentMarks, arena_nbytes, sizes_of
from mmserve.cache_server.quotas import LeaseBudgets
from mmserve.messages.cache import AllocItem, AllocReply, EmbedState, ItemState, StoredImage, StoredState
from mmserve.messages.media import Handle
from mmserve.messages.server_state import ArenaExtent

HELD_UP = Lease("", "")
"""Keeps extents in place that a writer may still write though its own lease has ended."""
_WORTHLESS = ("vacant", "failed")
"""Stages of entries that are removed with their last lease, as there is nothing to cache."""


class MediaTable:
    """``first_generation`` and ``first_item_id`` are random per start, so that names from an earlier one never match.

    ``arena``, ``queue``: see EntryStore.
    """

    def __init__(
        self,
        nbytes: int,
        *,
        first_generation: int,
        first_item_id: int,
        first_token: int,
        arena: ExtentMarks,
        budgets: LeaseBudgets | None = None,
        queue: EvictionQueue[CacheEntry] | None = None,
    ) -> None:
        self._store = EntryStore(
            nbytes,
            first_generation=first_generation,
            first_item_id=first_item_id,
            first_token=first_token,
            arena=arena,
            queue=queue,
        )
        self.budgets = budgets or LeaseBudgets(nbytes, nbytes)
        self._leased: dict[Lease, dict[int, CacheEntry]] = {}
        """Lease -> item id -> entry."""

    # Calls of HTTP workers

    def alloc(self, lease: Lease, items: Sequence[AllocItem]) -> AllocReply:
        """Lease all ``items`` (no duplicates) or none. Items that the lease has already are answered again."""
        by_spec = self._store.by_spec
        found = [entry for entry in map(by_spec.get, items) if entry is not None]
        missing = [spec for spec in items if spec not in by_spec] if found else items
        sizes = embeds, data = sizes_of(missing)
        refused = self.budgets.refusal(sum(data), sum(embeds), found) or self._store.create(missing, sizes, found)
        if refused:
            return AllocReply(refused=refused)
        if missing:
            found = [by_spec[spec] for spec in items]
        leased = self._leased.get(lease, {})
        fresh = [entry for entry in found if entry.item_id not in leased]
        self.counters["mm_cache_queries",] += len(fresh)
        self.counters["mm_cache_hits",] += [entry.stage for entry in fresh].count("ready")
        self._lease(lease, fresh)
        return AllocReply(records=tuple([entry.record_for(lease) for entry in found]))

    def evict_own(self, items: Sequence[AllocItem]) -> bool:
        """Evict the entries of ``items`` without leases, which ``alloc`` spares: the others may not fit between them.

        Only if that helps, as far as budgets and bytes tell; returns whether it did.
        """
        found = [entry for entry in map(self._store.by_spec.get, items) if entry is not None]
        own = [entry for entry in found if entry.idle_since]
        kept = [entry for entry in found if not entry.idle_since]
        missing = [spec for spec in items if spec not in self._store.by_spec] + [entry.spec for entry in own]
        embeds, data = map(sum, sizes_of(missing))
        if not own or data + embeds > self._store.evictable_nbytes or self.budgets.refusal(data, embeds, kept):
            return False
        self._store.evict(own)
        return True

    def missing_nbytes(self, items: Iterable[AllocItem]) -> int:
        """Arena bytes of the extents that an allocation of these has to place."""
        return arena_nbytes([item for item in items if item not in self._store.by_spec])

    def items_of(self, lease: Lease) -> tuple[AllocItem, ...]:
        return tuple(entry.spec for entry in self._leased.get(lease, {}).values())

    def release(self, lease: Lease) -> int:
        """End the lease; returns how many items it had. Items that it was writing are left to another writer."""
        entries = self._leased.pop(lease, {})
        self._store.free(self._unlease(lease, entries.values()))
        return len(entries)

    def is_stored(self, item: AllocItem) -> bool:
        """True if a request that leases the item need not write its bytes: others have, or are at it."""
        entry = self._store.by_spec.get(item)
        return entry is not None and entry.stage != "vacant"

    def look_up(self, item: AllocItem) -> StoredImage:
        """What is stored of an image; changes nothing."""
        entry = self._store.by_spec.get(item)
        if entry is None:
            return StoredImage("absent", self._store.remembered_start(item))
        states: dict[Stage, StoredState] = {"data": "bytes", "ready": "embedding"}
        return StoredImage(states.get(entry.stage, "absent"), entry.token_start)

    def set_data(self, lease: Lease, item_ids: Iterable[int], ok: bool) -> None:
        """The writer has written the bytes, or (not ok) another may write. Ignored for items of other writers."""
        for entry in self._store.known(item_ids):
            if entry.stage == "writing" and entry.writer == lease:
                entry.stage, entry.writer = ("data" if ok else "vacant"), None

    def get_data(self, lease: Lease, item_ids: Iterable[int]) -> tuple[ItemState, ...]:
        """States for the lease, which becomes the writer of its vacant items."""
        leased = self._leased.get(lease, {})
        return tuple(leased[item_id].state_for(lease) if item_id in leased else "gone" for item_id in item_ids)

    # Calls of visual servers

    def get_embed(self, owner: str, item_ids: Sequence[int]) -> tuple[EmbedState, ...]:
        """States; items with bytes but no embedding are kept in place for ``owner`` until its ``set_embed``."""
        lease = Lease(owner, ENCODER)
        leased = self._leased.get(lease, {})
        known = self._store.known(item_ids)
        self._lease(lease, [entry for entry in known if entry.stage == "data" and entry.item_id not in leased])
        return tuple(self._embed_state(item_id) for item_id in item_ids)

    def set_embed(self, owner: str, item_ids: Sequence[int], ok: Iterable[bool]) -> tuple[EmbedState, ...]:
        """The embedding is complete, or (not ok) the item is forgotten. Returns the states after that."""
        lease = Lease(owner, ENCODER)
        leased = self._leased.get(lease, {})
        freed: list[Handle] = []
        done: list[CacheEntry] = []
        for item_id, item_ok in zip(item_ids, ok, strict=True):
            if (entry := self._store.by_id.get(item_id)) is None:
                continue
            if entry.stage == "data":
                freed += self._finish_embed(entry) if item_ok else self._fail(entry)
            if leased.pop(item_id, None) is not None:
                done.append(entry)
        if not leased:
            self._leased.pop(lease, None)
        self._store.free([*freed, *self._unlease(lease, done)])
        return tuple(self._embed_state(item_id) for item_id in item_ids)

    # Ends without the owner's word

    def drop_owner(self, owner: str, *, may_live: bool) -> int:
        """End all leases of a process; returns how many items they had.

        A process that may still live may also go on writing. So what it was writing is failed, and its extents stay in
        place until nobody writes them. Of a dead process, another request becomes the writer.
        """
        leases = [lease for lease in self._leased if lease.owner == owner]
        for lease in leases:
            for entry in list(self._leased[lease].values()):
                handle = entry.writable_by(lease)
                if handle is not None and (may_live or self._store.is_being_written(entry)):
                    self._end_writing(entry, handle)
        return sum(map(self.release, leases))

    def hold(self, extents: Sequence[Extent]) -> None:
        """Keep free extents in place that writers from before a restart still write, until those have ended."""
        self._lease(HELD_UP, self._store.take(extents))

    def free_written(self) -> bool:
        """Free what was held for writers that have ended. Returns True if there was any."""
        held = self._leased.get(HELD_UP, {})
        ended = [entry for entry in held.values() if not self._store.is_being_written(entry)]
        for entry in ended:
            del held[entry.item_id]
        self._store.free(self._unlease(HELD_UP, ended))
        return bool(ended)

    def _end_writing(self, entry: CacheEntry, handle: Handle) -> None:
        self._fail(entry)
        if self._store.end_writing(handle):
            self._lease(HELD_UP, [entry])

    # Metrics

    @property
    def counters(self) -> Counter[tuple[str, ...]]:
        return self._store.counters

    def take_counters(self) -> Counter[tuple[str, ...]]:
        """Counters since the last call."""
        counters, self._store.counters = self._store.counters, Counter()
        return counters

    def follow_embeddings(self) -> None:
        """From now on, ``take_embedding_changes`` is called."""
        self._store.embedding_changes = []

    def take_embedding_changes(self) -> list[EmbeddingChange]:
        """Embeddings that came and went since the last call."""
        if (changes := self._store.embedding_changes) is None:
            return []
        self._store.embedding_changes = []
        return changes

    @property
    def num_leases(self) -> int:
        return sum(len(entries) for entries in self._leased.values())

    def usage(self) -> Usage:
        """Extents and bytes by kind and state."""
        return self._store.usage()

    def extents(self) -> tuple[list[ArenaExtent], list[Extent]]:
        """Copies of all extents as they are now, and (start, end) of each hole."""
        return extents_of(self._store.by_id.values()), list(self._store.space.holes.holes())

    @property
    def num_freed(self) -> int:
        """Until it grows, an allocation that was refused as "full" would be refused again."""
        return self._store.space.num_freed

    # Leases and stages

    def _embed_state(self, item_id: int) -> EmbedState:
        if (entry := self._store.by_id.get(item_id)) is None or entry.stage == "failed":
            return "gone"
        return "ready" if entry.stage == "ready" else "pending"

    def _lease(self, lease: Lease, entries: Iterable[CacheEntry]) -> None:
        """``entries`` that the lease does not have yet."""
        new = {entry.item_id: entry for entry in entries}
        if not new:
            return
        self._leased.setdefault(lease, {}).update(new)
        self.budgets.take([entry for entry in new.values() if not entry.num_leases])
        for entry in new.values():
            entry.num_leases += 1
        self._store.pin(new.values())

    def _unlease(self, lease: Lease, entries: Iterable[CacheEntry]) -> list[Handle]:
        """The lease does not have them any more. The caller frees the handles returned."""
        idle: list[CacheEntry] = []
        for entry in entries:
            entry.num_leases -= 1
            if entry.writer == lease:
                entry.stage, entry.writer = "vacant", None
            if not entry.num_leases:
                idle.append(entry)
        self.budgets.give(idle)
        self._store.unpin([entry for entry in idle if entry.stage not in _WORTHLESS])
        return [handle for entry in idle if entry.stage in _WORTHLESS for handle in self._store.remove(entry)]

    def _finish_embed(self, entry: CacheEntry) -> Sequence[Handle]:
        assert entry.data is not None, "an entry to be encoded has its bytes"
        self._store.pin([entry])
        data, entry.data = entry.data, None
        if entry.num_leases:
            self.budgets.give_data(entry.data_nbytes)
        entry.nbytes -= entry.data_nbytes
        entry.data_nbytes = 0
        entry.stage = "ready"
        if self._store.embedding_changes is not None:
            self._store.embedding_changes.append((entry.spec.key, entry.spec.num_tokens))
        if not entry.num_leases:
            self._store.unpin([entry])
        return (data,)

    def _fail(self, entry: CacheEntry) -> Sequence[Handle]:
        self._store.pin([entry])
        entry.stage, entry.writer = "failed", None
        self._store.unlist(entry)
        return () if entry.num_leases else self._store.remove(entry)
