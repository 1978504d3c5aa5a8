"""The table of the arena: content -> extents, stages, leases, eviction. The one owner of who has which slot.

Pure: no sockets, no clocks, no locks, no payload. What must be erased in the arena is handed to ``erase``.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from mmserve.cache_server.allocator.arena_map import ArenaMap
from mmserve.cache_server.allocator.arena_stats import Usage, usage_of
from mmserve.cache_server.allocator.eviction import plan
from mmserve.cache_server.allocator.eviction_queue import EvictionQueue
from mmserve.cache_server.entries import CacheEntry, Lease, extent_of
from mmserve.cache_server.quotas import LeaseBudgets
from mmserve.cache_server.token_ids import TokenRanges
from mmserve.ipc.arena import ALIGNMENT, extent_nbytes
from mmserve.messages.cache import AllocItem, AllocReply, EmbedState, ItemState, Refusal
from mmserve.messages.media import Handle

ENCODER = ""
"""Request id of the leases that keep items in place while their owner, a visual server, encodes them."""
Sizes = tuple[Sequence[int], Sequence[int]]
"""Arena bytes of embeddings and of data, item by item."""
_WORTHLESS = ("vacant", "failed")
"""Stages of items that nobody will find."""


class MediaTable:
    """``first_generation`` and ``first_item_id`` are random per start: names from an earlier life never match."""

    def __init__(
        self,
        nbytes: int,
        *,
        first_generation: int,
        first_item_id: int,
        first_token: int,
        erase: Callable[[Handle], None],
        budgets: LeaseBudgets | None = None,
    ) -> None:
        self._space: ArenaMap[CacheEntry] = ArenaMap(nbytes // ALIGNMENT * ALIGNMENT)
        self._generations = itertools.count(first_generation)
        self._item_ids = itertools.count(first_item_id)
        self._ranges = TokenRanges(first_token)
        self._erase = erase
        self.budgets = budgets or LeaseBudgets(nbytes, nbytes)
        self._items: dict[int, CacheEntry] = {}
        self._by_spec: dict[AllocItem, CacheEntry] = {}
        self._held: dict[Lease, dict[int, CacheEntry]] = {}
        self._idle = EvictionQueue()
        self.counters: Counter[tuple[str, ...]] = Counter()
        """(metric, *labels) -> count since the last look; the reader takes them away."""

    # what HTTP workers ask

    def alloc(self, lease: Lease, items: Sequence[AllocItem]) -> AllocReply:
        """Lease all ``items`` (no duplicates) or none. What the lease holds already is answered again."""
        found = [item for item in map(self._by_spec.get, items) if item is not None]
        missing = [spec for spec in items if spec not in self._by_spec] if found else items
        embeds, data = _sizes_of(missing)
        refused = self.budgets.refusal(sum(data), sum(embeds), found) or self._make(missing, (embeds, data), found)
        if refused:
            return AllocReply(refused=refused)
        if missing:
            found = [self._by_spec[spec] for spec in items]
        held = self._held.get(lease, {})
        fresh = [item for item in found if item.item_id not in held]
        self.counters["mm_cache_queries",] += len(fresh)
        self.counters["mm_cache_hits",] += [item.stage for item in fresh].count("ready")
        self._lease(lease, fresh)
        return AllocReply(records=tuple([item.record_for(lease) for item in found]))

    def evict_own(self, items: Sequence[AllocItem]) -> bool:
        """Evict those of ``items`` that nobody holds, instead of sparing them as ``alloc`` does: between them there may
        be no room in one piece for the others. Only where that helps, as budgets and bytes allow; whether it does."""
        found = [item for item in map(self._by_spec.get, items) if item is not None]
        own = [item for item in found if item.idle_since]
        kept = [item for item in found if not item.idle_since]
        missing = [spec for spec in items if spec not in self._by_spec] + [item.spec for item in own]
        embeds, data = map(sum, _sizes_of(missing))
        room = self._space.holes.free_nbytes + self._idle.nbytes
        if not own or data + embeds > room or self.budgets.refusal(data, embeds, kept):
            return False
        self._space.holes.free_all([extent for item in own for extent in item.extents])
        self._evict(own)
        return True

    def needs_space(self, items: Iterable[AllocItem]) -> bool:
        """Would an allocation of these have to place extents?"""
        return any(item not in self._by_spec for item in items)

    def items_of(self, lease: Lease) -> tuple[AllocItem, ...]:
        """What the lease holds."""
        return tuple(item.spec for item in self._held.get(lease, {}).values())

    def release(self, lease: Lease) -> int:
        """End the lease; how many items it held. What it was writing is left for another writer."""
        items = self._held.pop(lease, {})
        self._give_back(self._unlease(lease, items.values()))
        return len(items)

    def set_data(self, lease: Lease, item_ids: Iterable[int], ok: bool) -> None:
        """The writer is done, or (not ok) another may write. Ignored for items that ``lease`` does not write."""
        for item in self._known(item_ids):
            if item.stage == "writing" and item.writer == lease:
                item.stage, item.writer = ("data" if ok else "vacant"), None

    def get_data(self, lease: Lease, item_ids: Iterable[int]) -> tuple[ItemState, ...]:
        """States for the holder of ``lease``; of a vacant item it becomes the writer."""
        held = self._held.get(lease, {})
        return tuple(held[item_id].state_for(lease) if item_id in held else "gone" for item_id in item_ids)

    # what visual servers ask

    def get_embed(self, owner: str, item_ids: Sequence[int]) -> tuple[EmbedState, ...]:
        """States; items with bytes but no embedding are kept in place for ``owner`` until its ``set_embed``."""
        lease = Lease(owner, ENCODER)
        held = self._held.get(lease, {})
        pending = [item for item in self._known(item_ids) if item.stage == "data" and item.item_id not in held]
        self._lease(lease, pending)
        return tuple(self._embed_state(item_id) for item_id in item_ids)

    def set_embed(self, owner: str, item_ids: Sequence[int], ok: Iterable[bool]) -> tuple[EmbedState, ...]:
        """Rows are there, or (not ok) the item is forgotten. Answers the states after that."""
        lease = Lease(owner, ENCODER)
        held = self._held.get(lease, {})
        freed: list[Handle] = []
        done: list[CacheEntry] = []
        for item_id, item_ok in zip(item_ids, ok, strict=True):
            if (item := self._items.get(item_id)) is None:
                continue
            if item.stage == "data":
                freed += self._finish_embed(item) if item_ok else self._fail(item)
            if held.pop(item_id, None) is not None:
                done.append(item)
        if not held:
            self._held.pop(lease, None)
        self._give_back([*freed, *self._unlease(lease, done)])
        return tuple(self._embed_state(item_id) for item_id in item_ids)

    def drop_owner(self, owner: str) -> int:
        """The process is gone: all its leases end; how many there were."""
        return sum(self.release(lease) for lease in [lease for lease in self._held if lease.owner == owner])

    # what the metrics ask

    @property
    def num_leases(self) -> int:
        return sum(len(items) for items in self._held.values())

    def usage(self) -> Usage:
        """Extents and bytes by what they are used for."""
        return usage_of(self._items.values(), self._space.holes)

    @property
    def num_freed(self) -> int:
        """Until it grows, an allocation that was refused as "full" would be refused again."""
        return self._space.num_freed

    # inside

    def _known(self, item_ids: Iterable[int]) -> list[CacheEntry]:
        return [self._items[item_id] for item_id in item_ids if item_id in self._items]

    def _embed_state(self, item_id: int) -> EmbedState:
        if (item := self._items.get(item_id)) is None or item.stage == "failed":
            return "gone"
        return "ready" if item.stage == "ready" else "pending"

    def _make(self, missing: Sequence[AllocItem], sizes: Sizes, known: Sequence[CacheEntry]) -> Refusal:
        """Put ``missing`` into the table, or say why not; ``known`` items do not make way for them."""
        if not missing:
            return ""
        needed = sum(map(sum, sizes))
        if sum(item.nbytes for item in known) + needed > self._space.holes.nbytes:
            return "too_large"
        if needed > self._space.holes.free_nbytes + self._idle.nbytes:
            return "full"
        kept = [extent for item in known if item.idle_since for extent in item.extents]
        self._space.available.take_all(kept)
        with contextlib.closing(self._idle.ascending()) as idle:
            placed = plan(self._space, sizes, idle, self._idle.loss)
        self._space.available.free_all(kept)
        if placed is None:
            return "full"
        self._evict(placed.victims)
        self._add(missing, sizes, placed.offsets)
        return ""

    def _evict(self, victims: Sequence[CacheEntry]) -> None:
        """Forget them; the plan has given their extents back."""
        self.counters["mm_cache_evictions", "embed"] += len(victims)
        self.counters["mm_cache_evictions", "data"] += sum(item.data is not None for item in victims)
        self.counters["mm_cache_evicted_bytes",] += sum(item.nbytes for item in victims)
        for item in victims:
            self._idle.evicted(item)
            self._space.occupants.remove(item.extents)
            for handle in self._forget(item):
                self._erase(handle)

    def _add(self, specs: Sequence[AllocItem], sizes: Sizes, offsets: Sequence[int]) -> None:
        """New items. ``offsets``: of all embeddings, then of all data."""
        embed_nbytes, data_nbytes = [spec.embed_nbytes for spec in specs], [spec.data_nbytes for spec in specs]
        embeds = map(Handle, self._generations, offsets, embed_nbytes)
        data = map(Handle, self._generations, offsets[len(specs) :], data_nbytes)
        nbytes = map(operator.add, *sizes)
        item_ids = itertools.islice(self._item_ids, len(specs))
        items = list(map(CacheEntry, item_ids, specs, self._ranges.starts_of(specs), embeds, data, nbytes, sizes[1]))
        self._space.occupants.add(offsets, itertools.chain(*sizes), itertools.chain(items, items))
        self._by_spec.update(zip(specs, items, strict=True))
        self._items.update({item.item_id: item for item in items})

    def _lease(self, lease: Lease, items: Iterable[CacheEntry]) -> None:
        """``items`` that the lease does not hold yet."""
        new = {item.item_id: item for item in items}
        if not new:
            return
        self._held.setdefault(lease, {}).update(new)
        self.budgets.hold([item for item in new.values() if not item.num_leases])
        for item in new.values():
            item.num_leases += 1
        self._hold(new.values())

    def _unlease(self, lease: Lease, items: Iterable[CacheEntry]) -> list[Handle]:
        """The lease has let go of them; what can be given back now."""
        ended: list[CacheEntry] = []
        for item in items:
            item.num_leases -= 1
            if item.writer == lease:
                item.stage, item.writer = "vacant", None
            if not item.num_leases:
                ended.append(item)
        self.budgets.let_go(ended)
        self._let_go([item for item in ended if item.stage not in _WORTHLESS])
        return [handle for item in ended if item.stage in _WORTHLESS for handle in self._forget(item)]

    def _hold(self, items: Iterable[CacheEntry]) -> None:
        """Those that could have been evicted until now cannot any more."""
        idle = [item for item in items if item.idle_since]
        for item in idle:
            self._idle.discard(item)
        self._space.hold(idle)

    def _let_go(self, items: Sequence[CacheEntry]) -> None:
        """They may be evicted from now on."""
        for item in items:
            self._idle.add(item)
        if items:
            self._space.let_go(items)

    def _finish_embed(self, item: CacheEntry) -> Sequence[Handle]:
        assert item.data is not None, "an item to be encoded has its bytes"
        self._hold([item])
        data, item.data = item.data, None
        if item.num_leases:
            self.budgets.encoded(item.data_nbytes)
        item.nbytes -= item.data_nbytes
        item.data_nbytes = 0
        item.stage = "ready"
        if not item.num_leases:
            self._let_go([item])
        return (data,)

    def _fail(self, item: CacheEntry) -> Sequence[Handle]:
        self._hold([item])
        item.stage = "failed"
        self._unlist(item)
        return () if item.num_leases else self._forget(item)

    def _forget(self, item: CacheEntry) -> Sequence[Handle]:
        """Out of the table; its extents are the caller's to give back."""
        del self._items[item.item_id]
        if item.stage != "failed":
            self._unlist(item)
        return item.handles

    def _unlist(self, item: CacheEntry) -> None:
        """Nobody finds it any more; its token ids stay those of its content."""
        del self._by_spec[item.spec]
        self._ranges.remember(item.spec, item.token_start)

    def _give_back(self, handles: Sequence[Handle]) -> None:
        for handle in handles:
            self._erase(handle)
        if handles:
            self._space.give_back([extent_of(handle) for handle in handles])


def _sizes_of(specs: Sequence[AllocItem]) -> tuple[list[int], list[int]]:
    embeds = [extent_nbytes(spec.embed_nbytes) for spec in specs]
    return embeds, [extent_nbytes(spec.data_nbytes) for spec in specs]
