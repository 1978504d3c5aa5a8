"""The table by v1: rpyc on a Unix socket, one item a call, as LightLLM had it.

Scalars and tuples of them pass by value; a list or a struct would become a remote reference.
To add a call: an ``exposed_`` method here and one that calls it in client_v1.
"""

from __future__ import annotations

import socket
from typing import Any

import rpyc
from rpyc.core.channel import Channel
from rpyc.core.stream import SocketStream

from mmserve.cache_server.rpc.client_session import ClientSession
from mmserve.cache_server.rpc.connection_pool import MAX_WAIT_S
from mmserve.cache_server.rpc.disconnect_watcher import DisconnectWatcher
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.messages.cache import AllocItem, MediaRecord, PermitRequest
from mmserve.messages.media import Handle

_CONFIG = {"allow_pickle": False, "allow_safe_attrs": False, "include_local_traceback": False, "close_catchall": True}
HandleTuple = tuple[int, int, int]
RecordTuple = tuple[int, int, str, HandleTuple | None, HandleTuple]


class CacheService(rpyc.Service):  # type: ignore[misc]
    """One connection. The first call must be ``register``."""

    def __init__(self, table: SharedMediaTable, hangups: DisconnectWatcher) -> None:
        self._table = table
        self._hangups = hangups
        self._met: ClientSession | None = None
        self._refused: dict[str, list[AllocItem]] = {}
        """Items so far of requests of which one did not fit; they hold nothing."""

    def on_connect(self, conn: Any) -> None:
        self._fd = conn.fileno()

    def on_disconnect(self, conn: Any) -> None:
        if self._met is not None:
            self._met.leave()

    @property
    def _guest(self) -> ClientSession:
        if self._met is None:
            raise ValueError("register first")
        return self._met

    def exposed_register(self, owner: str) -> None:
        """Who is calling; leases are freed when the owner's last connection ends."""
        if self._met is not None:
            raise ValueError("registered already")
        self._met = ClientSession(self._table, self._hangups, owner, self._fd)

    def exposed_alloc(
        self, request_id: str, key: bytes, num_tokens: int, data_nbytes: int, embed_nbytes: int
    ) -> tuple[str, RecordTuple | None]:
        """Add one item to the request. ("", record), or (why not, None) with all of the request's items released:
        from then on items are only noted, until ``await_alloc``."""
        lease, item = self._guest.lease(request_id), AllocItem(key, num_tokens, data_nbytes, embed_nbytes)
        if request_id in self._refused:
            self._refused[request_id].append(item)
            return "full", None
        reply = self._table.alloc(lease, (item,), 0.0)
        if reply.refused:
            self._refused[request_id] = [*self._table.held(lease), item]
            self._table.release(lease)
            return reply.refused, None
        return "", _record_tuple(reply.records[0])

    def exposed_await_alloc(self, request_id: str, wait_s: float) -> str:
        """Wait for space for all items noted, and lease them; "" or why not. ``alloc`` then answers their records."""
        items = dict.fromkeys(self._refused.pop(request_id, ()))
        return self._table.alloc(self._guest.lease(request_id), tuple(items), min(wait_s, MAX_WAIT_S)).refused

    def exposed_release(self, request_id: str) -> None:
        self._refused.pop(request_id, None)
        self._table.release(self._guest.lease(request_id))

    def exposed_set_items_data(self, request_id: str, item_id: int, ok: bool) -> None:
        self._table.set_data(self._guest.lease(request_id), (item_id,), ok)

    def exposed_get_items_data(self, request_id: str, item_id: int, wait_s: float) -> str:
        return self._table.get_data(self._guest.lease(request_id), (item_id,), min(wait_s, MAX_WAIT_S))[0]

    def exposed_set_items_embed(self, item_id: int, ok: bool) -> str:
        return self._table.set_embed(self._guest.owner, (item_id,), (ok,))[0]

    def exposed_get_items_embed(self, item_id: int) -> str:
        return self._table.get_embed(self._guest.owner, (item_id,))[0]

    def exposed_acquire_permits(
        self, requests: tuple[tuple[str, int, float], ...], wait_s: float
    ) -> tuple[tuple[str, ...], str]:
        """``requests``: the fields of each PermitRequest. Returns those of PermitsReply."""
        wanted = [PermitRequest(*fields) for fields in requests]
        reply = self._table.acquire_permits(self._guest.owner, wanted, min(wait_s, MAX_WAIT_S))
        return reply.granted, reply.promised

    def exposed_release_permit(self, name: str) -> None:
        self._table.release_permit(self._guest.lease(name))

    def exposed_unregister(self) -> None:
        self._table.unregister(self._guest.owner)


def _record_tuple(record: MediaRecord) -> RecordTuple:
    data = None if record.data is None else _handle_tuple(record.data)
    return record.item_id, record.token_start, record.state, data, _handle_tuple(record.embed)


def _handle_tuple(handle: Handle) -> HandleTuple:
    return handle.generation, handle.offset, handle.nbytes


def serve(table: SharedMediaTable, hangups: DisconnectWatcher, connected: socket.socket) -> None:
    """One connection to its end."""
    # rpyc by itself compresses what is larger than 3000 bytes.
    channel = Channel(SocketStream(connected), compress=False)
    rpyc.connect_channel(channel, CacheService(table, hangups), dict(_CONFIG)).serve_all()
