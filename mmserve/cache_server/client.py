"""The cache server as other processes see it: one protocol, spoken item by item (v1) or all items at once (v2).

The only module of this package that others import. Calls block, so they never run on an event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from mmserve.cache_server.rpc.connection_pool import ConnectionPool
from mmserve.cache_server.rpc.v1.client import ItemwiseCalls, RpycConnection
from mmserve.cache_server.rpc.v2.client import BatchedCalls, FramedConnection
from mmserve.ipc.endpoints import Endpoints
from mmserve.messages.cache import (
    AllocItem,
    AllocReply,
    EmbedState,
    ItemState,
    MediaRecord,
    PermitRequest,
    PermitsReply,
)
from mmserve.runtime.errors import Overloaded, TooLarge

PATIENCE_S = 5.0
"""How long a call waits for a server that is being started again."""
_RETRY_AFTER_S = 1.0


class Calls(Protocol):
    """The calls; ``items`` and ``item_ids`` hold no duplicates."""

    def alloc(self, request_id: str, items: Sequence[AllocItem], wait_s: float) -> AllocReply: ...
    def release(self, request_id: str) -> None: ...
    def set_items_data(self, request_id: str, item_ids: Sequence[int], ok: bool) -> None: ...
    def get_items_data(self, request_id: str, item_ids: Sequence[int], wait_s: float) -> Sequence[ItemState]: ...
    def set_items_embed(self, item_ids: Sequence[int], ok: Sequence[bool]) -> Sequence[EmbedState]: ...
    def get_items_embed(self, item_ids: Sequence[int]) -> Sequence[EmbedState]: ...
    def acquire_permits(self, requests: Sequence[PermitRequest], wait_s: float) -> PermitsReply: ...
    def release_permit(self, name: str) -> None: ...
    def unregister(self) -> None: ...


def connect(endpoints: Endpoints, owner: str, *, batched: bool, patience_s: float = PATIENCE_S) -> MediaCacheClient:
    """A client for this process (``owner``: Process.name). Connects at the first call and after a server restart."""
    if batched:
        link = ConnectionPool(partial(FramedConnection, endpoints.cache_calls), owner, patience_s)
        return MediaCacheClient(link, BatchedCalls(link))
    link = ConnectionPool(partial(RpycConnection, endpoints.cache_rpc), owner, patience_s)
    return MediaCacheClient(link, ItemwiseCalls(link))


class MediaCacheClient:
    """Thread-safe. Every method may raise Unavailable: the server is gone or restarting, ask again later.

    All leases of the process end with its last connection, at the latest when it dies.
    """

    def __init__(self, link: ConnectionPool, calls: Calls) -> None:
        self._link = link
        self._calls = calls

    def alloc(self, request_id: str, items: Sequence[AllocItem], *, wait_s: float) -> tuple[MediaRecord, ...]:
        """Lease all items to the request, or none; records are in the order of ``items``.

        Idempotent: what the request holds already is answered again. Waits up to wait_s for space, first come first
        served, and holds nothing meanwhile. Of an item given twice, the later record never says "write".
        Raises TooLarge (can never fit) and Overloaded (does not fit now), in both cases leasing nothing.
        """
        unique = tuple(dict.fromkeys(items))
        if not unique:
            return ()
        reply = self._calls.alloc(request_id, unique, wait_s)
        if reply.refused == "too_large":
            raise TooLarge("the images of this request do not fit into the media cache (--mm-cache-gb)")
        if reply.refused:
            raise Overloaded("the media cache is full", retry_after_s=_RETRY_AFTER_S)
        if len(unique) == len(items):
            return reply.records
        return _in_order(items, dict(zip(unique, reply.records, strict=True)))

    def release(self, request_id: str) -> None:
        """End the request's leases, and its waiting for any in another thread; twice, or without any, is harmless."""
        self._calls.release(request_id)

    def set_items_data(self, request_id: str, item_ids: Sequence[int], ok: bool = True) -> None:
        """The bytes of items answered "write" are sealed in the arena (ok), or another may write them (not ok)."""
        if item_ids:
            self._calls.set_items_data(request_id, _unique(item_ids), ok)

    def get_items_data(self, request_id: str, item_ids: Sequence[int], *, wait_s: float) -> tuple[ItemState, ...]:
        """States now; waits up to wait_s while some say "wait", but not once one says "write" or "gone".

        "write": the first writer failed or died, it is this request's turn. "gone": allocate again.
        """
        unique = _unique(item_ids)
        if not unique:
            return ()
        states = dict(zip(unique, self._calls.get_items_data(request_id, unique, wait_s), strict=True))
        return tuple(states[item_id] for item_id in item_ids)

    def set_items_embed(self, item_ids: Sequence[int], ok: Sequence[bool]) -> tuple[EmbedState, ...]:
        """Rows are sealed in the arena (ok), or the item cannot be encoded (not ok) and is forgotten.

        Answers the states after that: "gone" for an ok item means that the server no longer knows it.
        """
        outcome = dict(zip(item_ids, ok, strict=True))
        if not outcome:
            return ()
        states = dict(zip(outcome, self._calls.set_items_embed(tuple(outcome), tuple(outcome.values())), strict=True))
        return tuple(states[item_id] for item_id in item_ids)

    def get_items_embed(self, item_ids: Sequence[int]) -> tuple[EmbedState, ...]:
        """The encoder's question. Items answered "pending" stay put, leases or not, until its ``set_items_embed``."""
        unique = _unique(item_ids)
        if not unique:
            return ()
        states = dict(zip(unique, self._calls.get_items_embed(unique), strict=True))
        return tuple(states[item_id] for item_id in item_ids)

    def acquire_permits(self, requests: Sequence[PermitRequest], *, wait_s: float) -> PermitsReply:
        """Ask for permits to decode these requests' images; waits up to wait_s until one is granted or promised.

        A permit lasts until ``release_permit``, which also ends the waiting for one. See DecodePermits.
        """
        return self._calls.acquire_permits(requests, wait_s) if requests else PermitsReply()

    def release_permit(self, name: str) -> None:
        """End a permit, a promise or the waiting for one. Harmless without any."""
        self._calls.release_permit(name)

    def unregister(self) -> None:
        """Call it before ``close``: leases that are left then are counted as leaks."""
        if self._link.connected:
            self._calls.unregister()

    def close(self) -> None:
        """Close the connections; leases that are left end with them."""
        self._link.close()


def _unique(item_ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(item_ids))


def _in_order(items: Sequence[AllocItem], records: dict[AllocItem, MediaRecord]) -> tuple[MediaRecord, ...]:
    ordered: list[MediaRecord] = []
    seen: set[AllocItem] = set()
    for item in items:
        record = records[item]
        if item in seen and record.state == "write":
            record = MediaRecord(record.item_id, record.token_start, "wait", record.data, record.embed)
        seen.add(item)
        ordered.append(record)
    return tuple(ordered)
