"""Client of v2: all items of a request in one msgpack frame each way."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from mmserve.cache_server.rpc.connection_pool import CALL_MARGIN_S, ConnectionPool
from mmserve.cache_server.rpc.framing import FramedSocket, set_timeouts
from mmserve.ipc.links.codec import Codec
from mmserve.messages.cache import (
    MAX_WAIT_S,
    AcquirePermitsRequest,
    AllocItem,
    AllocReply,
    AllocRequest,
    BeatRequest,
    CacheRequest,
    CallFailed,
    EmbedState,
    GetDataRequest,
    GetEmbedRequest,
    GetNamesRequest,
    ItemState,
    LookUpRequest,
    NamedImage,
    PermitRequest,
    PermitsReply,
    Register,
    ReleasePermitRequest,
    ReleaseRequest,
    SetDataRequest,
    SetEmbedRequest,
    SetNamesRequest,
    StoredImage,
    UnregisterRequest,
)

R = TypeVar("R")
_REQUESTS: Codec[CacheRequest] = Codec(CacheRequest)
_BEAT = _REQUESTS.encode(BeatRequest())
_ALLOC: Codec[AllocReply | CallFailed] = Codec(AllocReply | CallFailed)
_ITEM_STATES: Codec[tuple[ItemState, ...] | CallFailed] = Codec(tuple[ItemState, ...] | CallFailed)
_EMBED_STATES: Codec[tuple[EmbedState, ...] | CallFailed] = Codec(tuple[EmbedState, ...] | CallFailed)
_PERMITS: Codec[PermitsReply | CallFailed] = Codec(PermitsReply | CallFailed)
_IMAGES: Codec[tuple[NamedImage | None, ...] | CallFailed] = Codec(tuple[NamedImage | None, ...] | CallFailed)
_STORED: Codec[tuple[StoredImage, ...] | CallFailed] = Codec(tuple[StoredImage, ...] | CallFailed)
_NOTHING: Codec[CallFailed | None] = Codec(CallFailed | None)


class FramedConnection:
    """One round trip a call."""

    def __init__(self, path: Path, owner: str, *, timeout_s: float = CALL_MARGIN_S) -> None:
        """``timeout_s``: for connecting and registering."""
        with contextlib.ExitStack() as undo:
            connected = undo.enter_context(socket.socket(socket.AF_UNIX))
            set_timeouts(connected, timeout_s)
            try:
                connected.connect(str(path))
            except BlockingIOError:
                raise TimeoutError("the other side does not accept connections") from None
            self._frames = FramedSocket(connected, timeout_s)
            self.call(_REQUESTS.encode(Register(owner=owner)), timeout_s=timeout_s)
            undo.pop_all()

    def call(self, request: bytes, timeout_s: float = CALL_MARGIN_S) -> bytes:
        self._frames.set_timeout(timeout_s)
        self._frames.send(request)
        return self._frames.receive()

    def beat(self) -> None:
        self.call(_BEAT)

    def close(self) -> None:
        self._frames.close()

    def __del__(self) -> None:
        """A thread that ends drops its connection here, at once, rather than at some garbage collection."""
        if hasattr(self, "_frames"):
            self.close()


class BatchedCalls:
    """One round trip a call, however many items."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool

    def alloc(self, request_id: str, items: Sequence[AllocItem], wait_s: float) -> AllocReply:
        return self._call(AllocRequest(request_id=request_id, items=tuple(items), wait_s=wait_s), _ALLOC, wait_s)

    def release(self, request_id: str) -> None:
        self._call(ReleaseRequest(request_id=request_id), _NOTHING)

    def set_items_data(self, request_id: str, item_ids: Sequence[int], ok: bool) -> None:
        self._call(SetDataRequest(request_id=request_id, item_ids=tuple(item_ids), ok=ok), _NOTHING)

    def get_items_data(self, request_id: str, item_ids: Sequence[int], wait_s: float) -> Sequence[ItemState]:
        request = GetDataRequest(request_id=request_id, item_ids=tuple(item_ids), wait_s=wait_s)
        return self._call(request, _ITEM_STATES, wait_s)

    def set_items_embed(self, item_ids: Sequence[int], ok: Sequence[bool]) -> Sequence[EmbedState]:
        return self._call(SetEmbedRequest(item_ids=tuple(item_ids), ok=tuple(ok)), _EMBED_STATES)

    def get_items_embed(self, item_ids: Sequence[int]) -> Sequence[EmbedState]:
        return self._call(GetEmbedRequest(item_ids=tuple(item_ids)), _EMBED_STATES)

    def acquire_permits(self, requests: Sequence[PermitRequest], wait_s: float) -> PermitsReply:
        return self._call(AcquirePermitsRequest(requests=tuple(requests), wait_s=wait_s), _PERMITS, wait_s)

    def release_permit(self, name: str) -> None:
        self._call(ReleasePermitRequest(name=name), _NOTHING)

    def set_names(self, names: Sequence[bytes], images: Sequence[NamedImage]) -> None:
        self._call(SetNamesRequest(names=tuple(names), images=tuple(images)), _NOTHING)

    def get_names(self, names: Sequence[bytes]) -> Sequence[NamedImage | None]:
        return self._call(GetNamesRequest(names=tuple(names)), _IMAGES)

    def look_up(self, items: Sequence[AllocItem]) -> Sequence[StoredImage]:
        return self._call(LookUpRequest(items=tuple(items)), _STORED)

    def unregister(self) -> None:
        self._call(UnregisterRequest(), _NOTHING)

    def _call(self, request: CacheRequest, replies: Codec[R | CallFailed], wait_s: float = 0.0) -> R:
        """Raises RuntimeError if the call fails in the server, twice: all calls may be repeated."""
        message = _REQUESTS.encode(request)
        reply = replies.decode(self._pool.call(message, wait_s=min(wait_s, MAX_WAIT_S)))
        if isinstance(reply, CallFailed):
            reply = replies.decode(self._pool.call(message, wait_s=min(wait_s, MAX_WAIT_S)))
        if isinstance(reply, CallFailed):
            raise RuntimeError(f"the cache server: {reply.message}")
        return reply
