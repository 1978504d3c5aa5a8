"""The table by v2: one message of messages/cache.py each way a call, as a msgpack frame on a plain Unix socket.

To add a call: its struct in CacheRequest, a case in ``answer``, a method in client_v2.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from typing import assert_never

import msgspec

from mmserve.cache_server.rpc.client_session import ClientSession
from mmserve.cache_server.rpc.connection_pool import MAX_WAIT_S
from mmserve.cache_server.rpc.disconnect_watcher import DisconnectWatcher
from mmserve.cache_server.rpc.framing import Frames
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.ipc.codec import Codec
from mmserve.messages.cache import (
    AcquirePermitsRequest,
    AllocReply,
    AllocRequest,
    CacheRequest,
    CallFailed,
    EmbedState,
    GetDataRequest,
    GetEmbedRequest,
    ItemState,
    PermitsReply,
    Register,
    ReleasePermitRequest,
    ReleaseRequest,
    SetDataRequest,
    SetEmbedRequest,
    UnregisterRequest,
)

logger = logging.getLogger(__name__)
_REQUESTS: Codec[CacheRequest] = Codec(CacheRequest)
_encode = msgspec.msgpack.Encoder().encode


def serve(table: SharedMediaTable, hangups: DisconnectWatcher, connected: socket.socket) -> None:
    """One connection to its end. Raises ValueError, or DecodeError, when the first message is not Register."""
    with contextlib.closing(Frames(connected)) as frames:
        register = _REQUESTS.decode(frames.receive())
        if not isinstance(register, Register):
            raise ValueError("register first")
        guest = ClientSession(table, hangups, register.owner, connected.fileno())
        try:
            frames.send(_encode(None))
            while True:
                frames.send(reply_to(table, guest, frames.receive()))
        finally:
            guest.leave()


def reply_to(table: SharedMediaTable, guest: ClientSession, message: bytes) -> bytes:
    """A call that fails has its answer like any other: nothing else of the connection suffers."""
    try:
        return _encode(answer(table, guest, _REQUESTS.decode(message)))
    except Exception as error:  # the boundary of one call: its caller is told
        logger.exception("a call of %s failed", guest.owner)
        return _encode(CallFailed(message=f"{type(error).__name__}: {error}"))


def answer(
    table: SharedMediaTable, guest: ClientSession, request: CacheRequest
) -> AllocReply | tuple[ItemState, ...] | tuple[EmbedState, ...] | PermitsReply | None:
    """Carry out one call. Raises ValueError for one that makes no sense."""
    match request:
        case AllocRequest():
            return table.alloc(guest.lease(request.request_id), request.items, min(request.wait_s, MAX_WAIT_S))
        case ReleaseRequest():
            table.release(guest.lease(request.request_id))
            return None
        case SetDataRequest():
            table.set_data(guest.lease(request.request_id), request.item_ids, request.ok)
            return None
        case GetDataRequest():
            return table.get_data(guest.lease(request.request_id), request.item_ids, min(request.wait_s, MAX_WAIT_S))
        case SetEmbedRequest():
            return table.set_embed(guest.owner, request.item_ids, request.ok)
        case GetEmbedRequest():
            return table.get_embed(guest.owner, request.item_ids)
        case AcquirePermitsRequest():
            return table.acquire_permits(guest.owner, request.requests, min(request.wait_s, MAX_WAIT_S))
        case ReleasePermitRequest():
            table.release_permit(guest.lease(request.name))
            return None
        case UnregisterRequest():
            table.unregister(guest.owner)
            return None
        case Register():
            raise ValueError("registered already")
        case _:
            assert_never(request)
