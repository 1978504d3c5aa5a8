"""Calls by v2: one message of messages/cache.py each way, as a msgpack frame on a plain Unix socket.

To add a call: its struct in CacheRequest, a case in ``start``, a method in v2/client.
"""

from __future__ import annotations

import logging
import select
import socket
from typing import Any, assert_never

import msgspec

from mmserve.cache_server.rpc.connections import ClientSession, ConnectionLoop, Timer
from mmserve.cache_server.rpc.framing import FrameBuffer, frame
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.cache_server.waiting.pending import Answered, PendingCall, Reply
from mmserve.ipc.links.codec import Codec
from mmserve.messages.cache import (
    MAX_WAIT_S,
    AcquirePermitsRequest,
    AllocRequest,
    BeatRequest,
    CacheRequest,
    CallFailed,
    GetDataRequest,
    GetEmbedRequest,
    GetNamesRequest,
    LookUpRequest,
    Register,
    ReleasePermitRequest,
    ReleaseRequest,
    SetDataRequest,
    SetEmbedRequest,
    SetNamesRequest,
    UnregisterRequest,
)

_RECEIVE_NBYTES = 1 << 16
_DONE = Answered(None)
_REQUESTS: Codec[CacheRequest] = Codec(CacheRequest)
_encode = msgspec.msgpack.Encoder().encode
logger = logging.getLogger(__name__)


class ServedConnection:
    """One connection, in the loop's thread. Its calls are answered one after another.

    While one waits, nothing is read; only the client's end is noticed.
    """

    def __init__(self, loop: ConnectionLoop, table: SharedMediaTable, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.fd = connected.fileno()
        self._loop = loop
        self._table = table
        self._socket = connected
        self._frames = FrameBuffer()
        self._unsent = b""
        self._session: ClientSession | None = None
        self._pending: PendingCall[Any] | None = None
        self._timer: Timer | None = None
        self._events = select.EPOLLIN
        loop.add(self, self._events)

    def on_event(self) -> None:
        """Raises EOFError or ConnectionError when the connection has ended, ValueError if it is of no use."""
        if self._pending is not None:
            raise EOFError("the client is gone while its call waits")
        if self._unsent:
            self._send(self._unsent)
        else:
            self._receive()
        self._answer_received()

    def close(self) -> None:
        self._loop.remove(self)
        self._socket.close()
        if self._timer is not None:
            self._loop.cancel(self._timer)
        if self._pending is not None:
            self._pending.expire()
        if self._session is not None:
            self._session.end()

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_RECEIVE_NBYTES)
        except BlockingIOError:
            return
        if not data:
            raise EOFError("the stream has ended")
        self._frames.feed(data)

    def _answer_received(self) -> None:
        while self._pending is None and not self._unsent and (message := self._frames.next()) is not None:
            self._answer(message)
        events = select.EPOLLRDHUP if self._pending is not None else select.EPOLLOUT if self._unsent else select.EPOLLIN
        if events != self._events:
            self._events = events
            self._loop.modify(self, events)

    def _answer(self, message: bytes) -> None:
        if self._session is None:
            register = _REQUESTS.decode(message)
            if not isinstance(register, Register):
                raise ValueError("register first")
            self._session = ClientSession(self._table, register.owner)
            self._send(frame(_encode(None)))
            return
        reply = started(self._table, self._session, message)
        if not isinstance(reply, PendingCall):
            self._send(frame(encoded(reply)))
            return
        self._pending = reply
        self._timer = self._loop.call_at(reply.deadline_s, reply.expire)
        reply.when_done(lambda: self._loop.call_soon(self, self._send_pending))

    def _send_pending(self) -> None:
        assert self._pending is not None, "it was pending"
        assert self._timer is not None, "it has a deadline"
        self._loop.cancel(self._timer)
        reply, self._pending, self._timer = self._pending, None, None
        self._send(frame(encoded(reply)))
        self._answer_received()

    def _send(self, data: bytes) -> None:
        """What the socket does not take now is sent when it can, before anything else."""
        try:
            sent = self._socket.send(data)
        except BlockingIOError:
            sent = 0
        self._unsent = data[sent:]


def started(table: SharedMediaTable, session: ClientSession, message: bytes) -> Reply[Any]:
    """The reply to one call, which may be pending. A call that fails is answered by CallFailed."""
    try:
        session.begin_call()
        return start(table, session, _REQUESTS.decode(message))
    except Exception as error:  # the boundary of one call: its caller is told
        logger.exception("a call of %s failed", session.owner)
        return Answered(_failed(error))


def encoded(reply: Reply[Any]) -> bytes:
    """Waits, if the reply is pending."""
    try:
        return _encode(reply.result())
    except Exception as error:  # noqa: BLE001 - the boundary of one call; logged where it was raised
        return _encode(_failed(error))


def _failed(error: Exception) -> CallFailed:
    return CallFailed(message=f"{type(error).__name__}: {error}")


def start(table: SharedMediaTable, session: ClientSession, request: CacheRequest) -> Reply[Any]:
    """Carry out one call. The types of replies stand at CacheRequest. Raises ValueError for a call without sense."""
    match request:
        case AllocRequest():
            return table.alloc(session.lease(request.request_id), request.items, min(request.wait_s, MAX_WAIT_S))
        case ReleaseRequest():
            table.release(session.lease(request.request_id))
            return _DONE
        case SetDataRequest():
            table.set_data(session.lease(request.request_id), request.item_ids, request.ok)
            return _DONE
        case GetDataRequest():
            return table.get_data(session.lease(request.request_id), request.item_ids, min(request.wait_s, MAX_WAIT_S))
        case SetEmbedRequest():
            return Answered(table.set_embed(session.owner, request.item_ids, request.ok))
        case GetEmbedRequest():
            return Answered(table.get_embed(session.owner, request.item_ids))
        case AcquirePermitsRequest():
            return table.acquire_permits(session.owner, request.requests, min(request.wait_s, MAX_WAIT_S))
        case ReleasePermitRequest():
            table.release_permit(session.lease(request.name))
            return _DONE
        case UnregisterRequest():
            table.unregister(session.owner)
            return _DONE
        case BeatRequest():
            table.beat(session.owner)
            return _DONE
        case SetNamesRequest():
            table.set_names(request.names, request.images)
            return _DONE
        case GetNamesRequest():
            return Answered(table.get_names(request.names))
        case LookUpRequest():
            return Answered(table.look_up(request.items))
        case Register():
            raise ValueError("registered already")
        case _:
            assert_never(request)
