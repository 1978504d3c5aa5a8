"""The table of the arena: content -> extents, stages, leases, eviction. The one owner of who has which slot.

Pure: no sockets, no clocks, no locks, no payload. What must be erased in the arena is handed to ``erase``.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from sortedcontainers import SortedDict

from mmserve.cache_server.eviction import Plan, plan
from mmserve.cache_server.extents import Extents
from mmserve.cache_server.item import Item, Lease, extent_of
from mmserve.cache_server.token_ranges import TokenRanges
from mmserve.ipc.arena import ALIGNMENT, extent_nbytes
from mmserve.messages.cache import AllocItem, AllocReply, EmbedState, ItemState
from mmserve.messages.media import Handle

ENCODER = ""
"""Request id of the leases that keep items in place while their owner, a visual server, encodes them."""


class Slots:
    """``first_generation`` and ``first_item_id`` are random per start: names from an earlier life never match."""

    def __init__(
        self,
        nbytes: int,
        *,
        first_generation: int,
        first_item_id: int,
        first_token: int,
        erase: Callable[[Handle], None],
    ) -> None:
        self._extents = Extents(nbytes // ALIGNMENT * ALIGNMENT)
        self._generations = itertools.count(first_generation)
        self._item_ids = itertools.count(first_item_id)
        self._uses = itertools.count()
        self._ranges = TokenRanges(first_token)
        self._erase = erase
        self._items: dict[int, Item] = {}
        self._by_spec: dict[AllocItem, Item] = {}
        self._held: dict[Lease, dict[int, Item]] = {}
        self._idle: SortedDict = SortedDict()
        """(priority, last use) -> item without leases: the order of eviction."""
        self._idle_key: dict[int, tuple[float, int]] = {}
        self._inflation = 0.0
        self.counters: Counter[tuple[str, ...]] = Counter()
        """(metric, *labels) -> count since the last look; the reader takes them away."""

    # what HTTP workers ask

    def alloc(self, lease: Lease, items: Sequence[AllocItem]) -> AllocReply:
        """Lease all ``items`` (no duplicates) or none. What the lease holds already is answered again."""
        if self._never_fits(items):
            return AllocReply(refused="too_large")
        if not self._make(items):
            return AllocReply(refused="full")
        fresh = [item for item in items if self._by_spec[item].item_id not in self._held.get(lease, {})]
        self.counters["mm_cache_queries",] += len(fresh)
        self.counters["mm_cache_hits",] += sum(self._by_spec[item].stage == "ready" for item in fresh)
        for item in items:
            self._lease(lease, self._by_spec[item])
        return AllocReply(records=tuple(self._by_spec[item].record_for(lease) for item in items))

    def needs_space(self, items: Iterable[AllocItem]) -> bool:
        """Would an allocation of these have to place extents?"""
        return any(item not in self._by_spec for item in items)

    def held(self, lease: Lease) -> tuple[AllocItem, ...]:
        """What the lease holds."""
        return tuple(item.spec for item in self._held.get(lease, {}).values())

    def release(self, lease: Lease) -> int:
        """End the lease; how many items it held. What it was writing is left for another writer."""
        items = self._held.pop(lease, {})
        for item in items.values():
            self._unlease(lease, item)
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

    def get_embed(self, owner: str, item_ids: Iterable[int]) -> tuple[EmbedState, ...]:
        """States; items with bytes but no embedding are kept in place for ``owner`` until its ``set_embed``."""
        for item in self._known(item_ids):
            if item.stage == "data":
                self._lease(Lease(owner, ENCODER), item)
        return tuple(self._embed_state(item_id) for item_id in item_ids)

    def set_embed(self, owner: str, item_ids: Sequence[int], ok: Iterable[bool]) -> tuple[EmbedState, ...]:
        """Rows are there, or (not ok) the item is forgotten. Answers the states after that."""
        lease = Lease(owner, ENCODER)
        for item_id, item_ok in zip(item_ids, ok, strict=True):
            item = self._items.get(item_id)
            if item is None:
                continue
            if item.stage == "data":
                self._finish_embed(item) if item_ok else self._fail(item)
            if self._held.get(lease, {}).pop(item_id, None) is not None:
                self._unlease(lease, item)
        if not self._held.get(lease):
            self._held.pop(lease, None)
        return tuple(self._embed_state(item_id) for item_id in item_ids)

    def drop_owner(self, owner: str) -> int:
        """The process is gone: all its leases end; how many there were."""
        return sum(self.release(lease) for lease in [lease for lease in self._held if lease.owner == owner])

    # what the metrics ask

    @property
    def num_leases(self) -> int:
        return sum(len(items) for items in self._held.values())

    def usage(self) -> dict[tuple[str, str], tuple[int, int]]:
        """(kind, state) -> (extents, bytes); kind data | embed | hole, state writing | ready | free."""
        found: Counter[tuple[str, str]] = Counter()
        nbytes: Counter[tuple[str, str]] = Counter()
        for item in self._items.values():
            for handle in item.handles:
                is_embed = handle is item.embed
                ready = item.stage == "ready" if is_embed else item.stage in ("data", "failed")
                label = ("embed" if is_embed else "data", "ready" if ready else "writing")
                found[label] += 1
                nbytes[label] += extent_nbytes(handle.nbytes)
        for start, end in self._extents.holes():
            found["hole", "free"] += 1
            nbytes["hole", "free"] += end - start
        return {label: (found[label], nbytes[label]) for label in found}

    # inside

    def _known(self, item_ids: Iterable[int]) -> list[Item]:
        return [self._items[item_id] for item_id in item_ids if item_id in self._items]

    def _embed_state(self, item_id: int) -> EmbedState:
        item = self._items.get(item_id)
        if item is None or item.stage == "failed":
            return "gone"
        return "ready" if item.stage == "ready" else "pending"

    def _never_fits(self, items: Iterable[AllocItem]) -> bool:
        needed = 0
        for item in items:
            known = self._by_spec.get(item)
            needed += extent_nbytes(item.embed_nbytes)
            needed += extent_nbytes(item.data_nbytes) if known is None or known.data is not None else 0
        return needed > self._extents.nbytes

    def _make(self, items: Sequence[AllocItem]) -> bool:
        """Place the items that are not in the table; those that are do not make way for them."""
        missing = [item for item in items if item not in self._by_spec]
        if not missing:
            return True
        keep = {self._by_spec[item].item_id for item in items if item in self._by_spec}
        sizes = [extent_nbytes(size) for item in missing for size in (item.data_nbytes, item.embed_nbytes)]
        placed = plan(self._extents, sizes, ()) or plan(
            self._extents, sizes, (item.as_victim() for item in self._idle.values() if item.item_id not in keep)
        )
        if placed is None:
            return False
        self._evict(placed)
        for item, offset, embed_offset in zip(missing, placed.offsets[::2], placed.offsets[1::2], strict=True):
            self._add(item, offset, embed_offset)
        return True

    def _evict(self, placed: Plan) -> None:
        """Carry out a plan, whose free list already counts the victims out and the new extents in."""
        for victim in placed.victims:
            item = self._items[victim.item_id]
            self._inflation = max(self._inflation, item.priority)
            for handle in item.handles:
                self.counters["mm_cache_evictions", "embed" if handle is item.embed else "data"] += 1
                self.counters["mm_cache_evicted_bytes",] += extent_nbytes(handle.nbytes)
                self._erase(handle)
            self._forget(item)
        self._extents = placed.extents

    def _add(self, spec: AllocItem, data_offset: int, embed_offset: int) -> None:
        item = Item(
            item_id=next(self._item_ids),
            spec=spec,
            token_start=self._ranges.start_of(spec),
            data=Handle(next(self._generations), data_offset, spec.data_nbytes),
            embed=Handle(next(self._generations), embed_offset, spec.embed_nbytes),
        )
        self._items[item.item_id] = self._by_spec[spec] = item

    def _lease(self, lease: Lease, item: Item) -> None:
        item.leases.add(lease)
        self._held.setdefault(lease, {})[item.item_id] = item
        self._not_idle(item)

    def _unlease(self, lease: Lease, item: Item) -> None:
        item.leases.discard(lease)
        if item.writer == lease:
            item.stage, item.writer = "vacant", None
        if item.leases:
            return
        if item.stage in ("vacant", "failed"):
            self._free(item)
        else:
            self._make_idle(item)

    def _make_idle(self, item: Item) -> None:
        """GreedyDual-Size (Cao and Irani, 1997): cost per byte to make it again, above what evictions cost so far."""
        self._not_idle(item)
        cost = item.spec.num_tokens if item.stage == "ready" else 0
        nbytes = sum(extent_nbytes(handle.nbytes) for handle in item.handles)
        item.priority = self._inflation + cost / nbytes
        self._idle_key[item.item_id] = (item.priority, next(self._uses))
        self._idle[self._idle_key[item.item_id]] = item

    def _not_idle(self, item: Item) -> None:
        if (key := self._idle_key.pop(item.item_id, None)) is not None:
            del self._idle[key]

    def _finish_embed(self, item: Item) -> None:
        assert item.data is not None, "an item to be encoded has its bytes"
        item.stage = "ready"
        self._give_back(item.data)
        item.data = None
        if not item.leases:
            self._make_idle(item)

    def _fail(self, item: Item) -> None:
        item.stage = "failed"
        self._by_spec.pop(item.spec, None)
        if not item.leases:
            self._not_idle(item)
            self._free(item)

    def _free(self, item: Item) -> None:
        for handle in item.handles:
            self._give_back(handle)
        self._forget(item)

    def _give_back(self, handle: Handle) -> None:
        self._erase(handle)
        self._extents.free(*extent_of(handle))

    def _forget(self, item: Item) -> None:
        self._not_idle(item)
        del self._items[item.item_id]
        if self._by_spec.get(item.spec) is item:
            del self._by_spec[item.spec]
