"""Random calls of the table: extents never overlap, every lease has a live owner, and leased entries keep theirs."""

from __future__ import annotations

import contextlib
from collections import Counter
from copy import deepcopy

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mmserve.cache_server.entries import ENCODER, Lease
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.cache_server.table import HELD_UP, MediaTable
from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem, MediaRecord
from mmserve.messages.media import Handle
from tests.fakes.pictures.marks import NoMarks

NBYTES = 64 * 40
OWNERS, REQUESTS, VISUALS = ("http-0", "http-1"), ("a", "b", "c"), ("visual-0", "visual-1")
ITEMS = tuple(AllocItem(bytes([n]) * 16, n + 1, 40 + 90 * n, 60 + 50 * (n % 3)) for n in range(7))

owners, requests, visuals = st.sampled_from(OWNERS), st.sampled_from(REQUESTS), st.sampled_from(VISUALS)
some_items = st.lists(st.sampled_from(ITEMS), min_size=1, max_size=3, unique=True)


class TableMachine(RuleBasedStateMachine):
    """The model beside it: what each lease was told it holds, and which extents have been erased."""

    def __init__(self) -> None:
        super().__init__()
        self.marks = NoMarks()
        self.media = MediaTable(NBYTES, first_generation=1, first_item_id=1, first_token=1 << 32, arena=self.marks)
        self.now_s = 0.0
        self.table = SharedMediaTable(self.media, clock=lambda: self.now_s)
        self.copies: dict[Handle, str] = {}
        """Extents in which a writer is at work -> its owner."""
        self.alive: Counter[str] = Counter()
        for owner in OWNERS + VISUALS:
            self.connect(owner)
        self.held: dict[Lease, dict[int, MediaRecord]] = {}
        self.encoding: dict[Lease, set[int]] = {}
        self.known: dict[int, MediaRecord] = {}
        self.ranges: dict[AllocItem, int] = {}

    @property
    def erased(self) -> list[Handle]:
        return self.marks.erased

    @rule(owner=st.sampled_from(OWNERS + VISUALS))
    def connect(self, owner: str) -> None:
        self.table.connect(owner)
        self.alive[owner] += 1

    @rule(owner=owners, request=requests, items=some_items)
    def alloc(self, owner: str, request: str, items: list[AllocItem]) -> None:
        lease, before = Lease(owner, request), self.media.items_of(Lease(owner, request))
        reply = self.table.alloc(lease, items, 0.0).result()
        if not self.alive[owner]:
            assert reply.refused == "full"
        if reply.refused:
            assert self.media.items_of(lease) == before
            return
        for item, record in zip(items, reply.records, strict=True):
            assert self.ranges.setdefault(item, record.token_start) == record.token_start
            assert record.state != "gone"
            self.held.setdefault(lease, {})[record.item_id] = record
            self.known[record.item_id] = record
        assert set(items) <= set(self.media.items_of(lease))

    @rule(owner=owners, request=requests)
    def release(self, owner: str, request: str) -> None:
        self._finish_copies(Lease(owner, request))
        self.held.pop(Lease(owner, request), None)
        self.table.release(Lease(owner, request))
        assert self.media.items_of(Lease(owner, request)) == ()

    @rule(owner=owners, request=requests, ok=st.booleans())
    def set_data(self, owner: str, request: str, ok: bool) -> None:
        lease = Lease(owner, request)
        self._finish_copies(lease)
        self.table.set_data(lease, list(self.held.get(lease, {})), ok)

    @rule(owner=owners, request=requests)
    def get_data(self, owner: str, request: str) -> None:
        lease = Lease(owner, request)
        self.table.get_data(lease, list(self.held.get(lease, {})), 0.0)

    @rule(visual=visuals)
    def get_embed(self, visual: str) -> None:
        ids = list(self.known)
        self.table.get_embed(visual, ids)
        lease = Lease(visual, ENCODER)
        self.encoding[lease] = set(self.media._leased.get(lease, {}))

    @rule(visual=visuals, ok=st.booleans())
    def set_embed(self, visual: str, ok: bool) -> None:
        self._finish_copies(Lease(visual, ENCODER))
        ids = sorted(self.encoding.pop(Lease(visual, ENCODER), ()))
        for item_id, state in zip(ids, self.table.set_embed(visual, ids, [ok] * len(ids)), strict=True):
            assert state != "pending"
            assert state == "gone" or self.known[item_id].embed not in self.erased

    @rule(owner=st.sampled_from(OWNERS + VISUALS))
    def die(self, owner: str) -> None:
        """All its connections end, one after another: with the last all it held is given back."""
        for _ in range(self.alive.pop(owner, 0)):
            self.table.disconnect(owner)
        self._forget(owner)
        for handle in [handle for handle, writer in self.copies.items() if writer == owner]:
            self._end_copy(handle)
        self.table.end_silent()

    @rule(owner=st.sampled_from(OWNERS + VISUALS))
    def starts_to_copy(self, owner: str) -> None:
        """The owner's threads are writing all that it may write."""
        for lease, entries in self.media._leased.items():
            for entry in entries.values():
                if lease.owner == owner and (handle := entry.writable_by(lease)) is not None:
                    self.copies[handle] = owner
                    self.marks.written.add(handle)

    @rule(owner=st.sampled_from(OWNERS + VISUALS))
    def is_stopped_for_long(self, owner: str) -> None:
        """Nothing that it was copying is given to others before the copies end."""
        self.table.end_silent()
        for _ in range(31):
            self.now_s += 1.0
            for other in OWNERS + VISUALS:
                if other != owner:
                    self.table.beat(other)
            self.table.end_silent()
        self._forget(owner)

    @rule()
    def copies_end(self) -> None:
        for handle in list(self.copies):
            self._end_copy(handle)
        self.table.end_silent()
        assert not self.media._leased.get(HELD_UP)

    def _finish_copies(self, lease: Lease) -> None:
        """A living owner ends its copies before it says that they are done, or gives up what it was writing."""
        for entry in self.media._leased.get(lease, {}).values():
            for handle in entry.handles:
                if self.copies.get(handle) == lease.owner:
                    self._end_copy(handle)

    def _end_copy(self, handle: Handle) -> None:
        del self.copies[handle]
        self.marks.written.discard(handle)

    def _forget(self, owner: str) -> None:
        for table in (self.held, self.encoding):
            for lease in [lease for lease in table if lease.owner == owner]:
                del table[lease]  # type: ignore[attr-defined]

    @rule()
    def everything_is_released(self) -> None:
        for owner in OWNERS + VISUALS:
            self.die(owner)
        self.table.end_silent()
        assert self.media.num_leases == 0
        assert self.media.missing_nbytes([AllocItem(b"whole arena" * 2, 1, 0, NBYTES - 300)])
        lease = Lease("http-0", "whole")
        self.connect("http-0")
        reply = self.media.alloc(lease, [AllocItem(b"whole arena" * 2, 1, 0, NBYTES - 300)])
        assert reply.refused == "", "all is evictable"
        self.table.release(lease)

    @invariant()
    def extents_tile_the_arena(self) -> None:
        pieces = sorted(self.media._store.space.holes.holes())
        for item in self.media._store.by_id.values():
            pieces += [(handle.offset, handle.offset + extent_nbytes(handle.nbytes)) for handle in item.handles]
        end = 0
        for start, stop in sorted(pieces):
            assert start == end
            end = stop
        assert end == NBYTES
        assert sum(nbytes for _, nbytes in self.media.usage().values()) == NBYTES

    @invariant()
    def all_is_available_but_what_is_held(self) -> None:
        left = deepcopy(self.media._store.space.evictable)
        for item in self.media._store.by_id.values():
            if item.num_leases:
                left.free_all(item.extents)
        assert list(left.holes()) == [(0, NBYTES)]

    @invariant()
    def every_lease_has_a_live_owner(self) -> None:
        assert all(self.alive[lease.owner] for lease in self.media._leased if lease != HELD_UP)

    @invariant()
    def what_is_being_copied_belongs_to_nobody_else(self) -> None:
        in_place = {handle for item in self.media._store.by_id.values() for handle in item.handles}
        assert set(self.copies) <= in_place

    @invariant()
    def what_is_held_is_not_erased(self) -> None:
        for lease, records in self.held.items():
            assert set(records) <= set(self.media._leased[lease])
            entries = self.media._leased[lease]
            assert all(entries[id_].stage == "failed" or r.embed not in self.erased for id_, r in records.items())
        for ids in self.encoding.values():
            stages = {item_id: self.media._store.by_id[item_id].stage for item_id in ids}
            assert all(stages[id_] == "failed" or self.known[id_].embed not in self.erased for id_ in ids)

    @invariant()
    def idle_items_are_ready_and_the_others_are_held(self) -> None:
        with contextlib.closing(self.media._store.idle.ascending()) as ascending:
            in_order = list(ascending)
        idle = {item.item_id for item in in_order}
        assert len(idle) == len(in_order)
        assert self.media._store.idle.nbytes == sum(item.nbytes for item in in_order)
        assert [item.priority for item in in_order] == sorted(item.priority for item in in_order)
        holders = Counter(item_id for items in self.media._leased.values() for item_id in items)
        for item in self.media._store.by_id.values():
            assert item.num_leases == holders[item.item_id]
            assert (item.item_id in idle) == (not item.num_leases)
            assert item.num_leases or item.stage in ("data", "ready")
            assert item.writer is None or item.item_id in self.media._leased[item.writer]
            assert item.nbytes == sum(extent_nbytes(handle.nbytes) for handle in item.handles)
            assert (item.stage == "writing") == (item.writer is not None)
            assert (item.data is None) == (item.stage == "ready")


TestTable = TableMachine.TestCase
TestTable.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
