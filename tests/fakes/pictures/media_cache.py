"""The cache server's client over a table in memory: single flight, leases, refusals; every call is recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mmserve.ipc.arena import Arena, extent_nbytes
from mmserve.messages.cache import AllocItem, ItemState, MediaRecord
from mmserve.messages.media import Handle
from mmserve.runtime.errors import Overloaded, TooLarge, Unavailable


@dataclass
class CacheEntry:
    record: MediaRecord
    writer: str = ""
    ready: bool = False
    holders: set[str] = field(default_factory=set)


class FakeMediaCache:
    """Use in place of a MediaCacheClient. ``at_call(name, request_id)`` runs inside every call, before it acts."""

    def __init__(self, arena: Arena, capacity_nbytes: int = 1 << 20) -> None:
        self.capacity_nbytes = capacity_nbytes
        self._arena = arena
        self.items: dict[bytes, CacheEntry] = {}
        self.calls: list[tuple[str, str]] = []
        self.at_call: Callable[[str, str], None] = lambda name, request_id: None
        self.hits: set[bytes] = set()
        self.fail_next_set = False
        self.is_silent = False
        self._forgotten: set[str] = set()
        self._used = 0
        self._changed = threading.Condition()

    def names(self, request_id: str) -> list[str]:
        return [name for name, of in self.calls if of == request_id]

    def alloc(self, request_id: str, items: Sequence[AllocItem], *, wait_s: float) -> tuple[MediaRecord, ...]:
        with self._call("alloc", request_id):
            needed = sum(extent_nbytes(item.data_nbytes) for item in items if item.key not in self.items)
            if needed > self.capacity_nbytes:
                raise TooLarge("never")
            fits = self._changed.wait_for(lambda: self._used + needed <= self.capacity_nbytes, wait_s)
            if not fits:
                raise Overloaded("full", retry_after_s=1.0)
            return tuple(self._lease(request_id, item) for item in items)

    def set_items_data(self, request_id: str, item_ids: Sequence[int], ok: bool = True) -> None:
        with self._call("set_items_data", request_id):
            if self.fail_next_set:
                self.fail_next_set = False
                raise Unavailable("the connection was lost")
            for item in self.items.values():
                if item.record.item_id in item_ids and item.writer == request_id:
                    item.writer, item.ready = "", ok
            self._changed.notify_all()

    def get_items_data(self, request_id: str, item_ids: Sequence[int], *, wait_s: float) -> tuple[ItemState, ...]:
        with self._call("get_items_data", request_id):
            self._changed.wait_for(lambda: "wait" not in self._states(request_id, item_ids, take=False), wait_s)
            return self._states(request_id, item_ids, take=True)

    def release(self, request_id: str) -> None:
        with self._call("release", request_id):
            for key, item in list(self.items.items()):
                item.holders.discard(request_id)
                if item.writer == request_id:
                    item.writer = ""
                if not item.holders and (not item.ready or request_id in self._forgotten):
                    self._used -= extent_nbytes(item.record.data.nbytes) if item.record.data else 0
                    del self.items[key]
            self._changed.notify_all()

    def unregister(self) -> None:
        with self._call("unregister", ""):
            held = {request_id for item in self.items.values() for request_id in item.holders}
            assert not held, f"leases were forgotten: {held}"

    def close(self) -> None:
        self.calls.append(("close", ""))

    def drop_everything(self) -> None:
        with self._changed:
            self.items.clear()
            self._changed.notify_all()

    def forget_on_release(self, request_id: str) -> None:
        """Its items leave the cache with it, as if evicted at once."""
        self._forgotten.add(request_id)

    def _lease(self, request_id: str, item: AllocItem) -> MediaRecord:
        if item.key in self.hits:
            return MediaRecord(900, 1 << 40, "hit", None, Handle(1, 0, item.embed_nbytes))
        if item.key not in self.items:
            number = len(self.items) + 1
            data = Handle(number, self._used, item.data_nbytes)
            self._used += extent_nbytes(item.data_nbytes)
            self._arena.open(data)
            embed = Handle(number, 0, item.embed_nbytes)
            record = MediaRecord(number, (1 << 33) * number, "write", data, embed)
            self.items[item.key] = CacheEntry(record, writer=request_id)
            self.items[item.key].holders.add(request_id)
            return record
        found = self.items[item.key]
        found.holders.add(request_id)
        state: ItemState = "data" if found.ready else "wait"
        record = found.record
        return MediaRecord(record.item_id, record.token_start, state, record.data, record.embed)

    def _states(self, request_id: str, item_ids: Sequence[int], *, take: bool) -> tuple[ItemState, ...]:
        by_id = {item.record.item_id: item for item in self.items.values()}
        states: list[ItemState] = []
        for item_id in item_ids:
            item = by_id.get(item_id)
            if item is None:
                states.append("gone")
            elif item.ready:
                states.append("data")
            elif item.writer and item.writer != request_id:
                states.append("wait")
            else:
                item.writer = request_id if take else item.writer
                states.append("write")
        return tuple(states)

    def _call(self, name: str, request_id: str) -> _Call:
        return _Call(self, name, request_id, self._changed)


class _Call:
    def __init__(self, cache: FakeMediaCache, name: str, request_id: str, lock: threading.Condition) -> None:
        self._cache, self._name, self._request_id, self._lock = cache, name, request_id, lock

    def __enter__(self) -> None:
        with self._lock:
            self._cache.calls.append((self._name, self._request_id))
        self._cache.at_call(self._name, self._request_id)
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
