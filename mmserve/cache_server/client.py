"""The cache server's client: the same calls over v1 (an item a call) or v2 (all items in one call).

Calls block, so they never run on an event loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from mmserve.cache_server.rpc.connection_pool import BEAT_INTERVAL_S, CALL_MARGIN_S, ConnectionPool
from mmserve.cache_server.rpc.v1.client import ItemwiseCalls, RpycConnection
from mmserve.cache_server.rpc.v2.client import BatchedCalls, FramedConnection
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.cache import (
    AllocItem,
    AllocReply,
    EmbedState,
    ItemState,
    MediaRecord,
    NamedImage,
    PermitRequest,
    PermitsReply,
    StoredImage,
)
from mmserve.runtime.errors import Overloaded, TooLarge

RECONNECT_TIMEOUT_S = 5.0
"""How long a call waits for a server that is being started again."""


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
    def set_names(self, names: Sequence[bytes], images: Sequence[NamedImage]) -> None: ...
    def get_names(self, names: Sequence[bytes]) -> Sequence[NamedImage | None]: ...
    def look_up(self, items: Sequence[AllocItem]) -> Sequence[StoredImage]: ...
    def unregister(self) -> None: ...


def connect(
    endpoints: Endpoints,
    owner: str,
    *,
    batched: bool,
    reconnect_timeout_s: float = RECONNECT_TIMEOUT_S,
    beat_interval_s: float = BEAT_INTERVAL_S,
    call_margin_s: float = CALL_MARGIN_S,
) -> MediaCacheClient:
    """A client for the process ``owner`` (Process.name). Connects at the first call and after a server restart.

    ``call_margin_s``: how long a call may take beyond the time that it may wait in the server.
    """
    timing = reconnect_timeout_s, beat_interval_s, call_margin_s
    if batched:
        pool = ConnectionPool(partial(FramedConnection, endpoints.cache_calls), owner, *timing)
        return MediaCacheClient(pool, BatchedCalls(pool))
    pool = ConnectionPool(partial(RpycConnection, endpoints.cache_rpc), owner, *timing)
    return MediaCacheClient(pool, ItemwiseCalls(pool))


class MediaCacheClient:
    """Thread-safe. Every method may raise Unavailable: the server is gone, being restarted, or does not answer; try
    again later. Its subclass Shortage: this process or the server lacks a descriptor or a thread for a connection. A
    call that was not answered may still be carried out, if the server goes on.

    All leases of the process end with its last connection, at the latest when it dies, or when it is stopped for long.
    """

    def __init__(self, pool: ConnectionPool, calls: Calls) -> None:
        self._pool = pool
        self._calls = calls

    def alloc(self, request_id: str, items: Sequence[AllocItem], *, wait_s: float) -> tuple[MediaRecord, ...]:
        """Lease all items to the request, or none. Records are in the order of ``items``.

        Idempotent: items that the request has already are answered again. Waits up to wait_s for space, first come
        first served, with nothing leased meanwhile. Of an item given twice, the later record never says "write".
        Raises TooLarge (can never fit) and Overloaded (does not fit now), in both cases leasing nothing.
        """
        unique = tuple(dict.fromkeys(items))
        if not unique:
            return ()
        reply = self._calls.alloc(request_id, unique, wait_s)
        if reply.refused == "too_large":
            raise TooLarge("the images of this request do not fit into the media cache (--mm-cache-gb)")
        if reply.refused:
            raise Overloaded("the media cache is full")
        if len(unique) == len(items):
            return reply.records
        return _in_order(items, dict(zip(unique, reply.records, strict=True)))

    def release(self, request_id: str) -> None:
        """End the request's leases, and its waiting allocation in another thread. No error if there are none."""
        self._calls.release(request_id)

    def set_items_data(self, request_id: str, item_ids: Sequence[int], ok: bool = True) -> None:
        """The bytes of items answered "write" are complete in the arena (ok), or another request may write them."""
        if item_ids:
            self._calls.set_items_data(request_id, _unique(item_ids), ok)

    def get_items_data(self, request_id: str, item_ids: Sequence[int], *, wait_s: float) -> tuple[ItemState, ...]:
        """States; waits up to wait_s while some say "wait", unless one says "write" or "gone".

        "write": the first writer failed or died, this request is the writer now. "gone": allocate again.
        """
        unique = _unique(item_ids)
        if not unique:
            return ()
        states = dict(zip(unique, self._calls.get_items_data(request_id, unique, wait_s), strict=True))
        return tuple(states[item_id] for item_id in item_ids)

    def set_items_embed(self, item_ids: Sequence[int], ok: Sequence[bool]) -> tuple[EmbedState, ...]:
        """The rows are complete in the arena (ok), or the item cannot be encoded and is forgotten.

        Returns the states after that: "gone" for an ok item means that the server no longer knows it.
        """
        outcome = dict(zip(item_ids, ok, strict=True))
        if not outcome:
            return ()
        states = dict(zip(outcome, self._calls.set_items_embed(tuple(outcome), tuple(outcome.values())), strict=True))
        return tuple(states[item_id] for item_id in item_ids)

    def get_items_embed(self, item_ids: Sequence[int]) -> tuple[EmbedState, ...]:
        """For visual servers. Items answered "pending" keep their place, leased or not, until ``set_items_embed``."""
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
        """End a permit, a promise or a queued request for one. No error if there is none."""
        self._calls.release_permit(name)

    def set_names(self, images: Mapping[bytes, NamedImage]) -> None:
        """From now on these names stand for these images, for all processes."""
        if images:
            self._calls.set_names(tuple(images), tuple(images.values()))

    def get_names(self, names: Sequence[bytes]) -> tuple[NamedImage | None, ...]:
        """The image of each name; None if it stands for none that is stored now."""
        return tuple(self._calls.get_names(names)) if names else ()

    def look_up(self, items: Sequence[AllocItem]) -> tuple[StoredImage, ...]:
        """What is stored of each image. Leases nothing and changes nothing."""
        return tuple(self._calls.look_up(items)) if items else ()

    @property
    def is_silent(self) -> bool:
        """True since a call was not answered in time, until the server is seen to answer again."""
        return self._pool.is_silent

    def unregister(self) -> None:
        """Call it before ``close``. Remaining leases are counted as leaks."""
        if self._pool.connected:
            self._calls.unregister()

    def close(self) -> None:
        """Close the connections, which ends remaining leases."""
        self._pool.close()


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
