"""Calls by v1: rpyc on a Unix socket, one item a call, as LightLLM had it. Each connection has a thread.

Scalars and tuples of them pass by value; a list or a struct would become a remote reference.
To add a call: an ``exposed_`` method here and one that calls it in v1/client.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from typing import Any

import rpyc
from rpyc.core.channel import Channel
from rpyc.core.stream import SocketStream

from mmserve.cache_server.rpc.connections import ClientSession
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.messages.cache import MAX_WAIT_S, AllocItem, MediaRecord, NamedImage, PermitRequest
from mmserve.messages.media import Handle

_CONFIG = {"allow_pickle": False, "allow_safe_attrs": False, "include_local_traceback": False, "close_catchall": True}
_JOIN_S = 2.0
"""How long a connection's thread may take to end at the server's end; its waiting call has ended by then."""
_MAX_FRAME_NBYTES = 4 << 20
"""A call of v1 has a few scalars."""
HandleTuple = tuple[int, int, int]
RecordTuple = tuple[int, int, str, HandleTuple | None, HandleTuple]
ImageTuple = tuple[bytes, int, int, int, int, int, int]
"""The fields of a NamedImage's item, then its width, height and loading_nbytes."""
logger = logging.getLogger(__name__)


class _BoundedChannel(Channel):  # type: ignore[misc]
    """rpyc's framing, which by itself takes 4 GiB at once, and more when decompressed. Our clients never compress."""

    def recv(self) -> bytes:
        nbytes, is_compressed = self.FRAME_HEADER.unpack(self.stream.read(self.FRAME_HEADER.size))
        if nbytes > _MAX_FRAME_NBYTES or is_compressed:
            self.close()  # before rpyc says goodbye and waits for the answer
            raise EOFError(f"a frame of {nbytes} bytes was announced, or a compressed one")
        message: bytes = self.stream.read(nbytes + len(self.FLUSHER))
        return message[:nbytes]


class CacheService(rpyc.Service):  # type: ignore[misc]
    """One connection. The first call must be ``register``."""

    def __init__(self, table: SharedMediaTable, watch: Callable[[int, Callable[[], None]], object]) -> None:
        """``watch(fd, on_disconnect)`` notices the connection's end even while a call waits."""
        self._table = table
        self._watch = watch
        self._registered: ClientSession | None = None
        self._refused: dict[str, list[AllocItem]] = {}
        """Request -> its items so far, when one of them did not fit; they hold nothing."""

    def on_connect(self, conn: Any) -> None:
        self._fd = conn.fileno()

    def on_disconnect(self, conn: Any) -> None:
        if self._registered is not None:
            self._registered.end()

    @property
    def _session(self) -> ClientSession:
        """For one call."""
        if self._registered is None:
            raise ValueError("register first")
        self._registered.begin_call()
        return self._registered

    def exposed_register(self, owner: str) -> None:
        """An owner's leases are freed when its last connection ends."""
        if self._registered is not None:
            raise ValueError("registered already")
        session = ClientSession(self._table, owner)
        try:
            self._watch(self._fd, session.end)
        except OSError:
            session.end()
            raise
        self._registered = session

    def exposed_alloc(
        self, request_id: str, key: bytes, num_tokens: int, data_nbytes: int, embed_nbytes: int
    ) -> tuple[str, RecordTuple | None]:
        """Add one item to the request. Returns ("", record), or (reason, None) with all of the request's items
        released; from then on its items are only collected, until ``await_alloc``."""
        lease, item = self._session.lease(request_id), AllocItem(key, num_tokens, data_nbytes, embed_nbytes)
        if request_id in self._refused:
            self._refused[request_id].append(item)
            return "full", None
        reply = self._table.alloc(lease, (item,), 0.0).result()
        if reply.refused:
            self._refused[request_id] = [*self._table.items_of(lease), item]
            self._table.release(lease)
            return reply.refused, None
        return "", _record_tuple(reply.records[0])

    def exposed_await_alloc(self, request_id: str, wait_s: float) -> str:
        """Wait for space for all collected items, and lease them. Returns "" or the reason; ``alloc`` then answers
        their records."""
        items = dict.fromkeys(self._refused.pop(request_id, ()))
        lease = self._session.lease(request_id)
        return self._table.alloc(lease, tuple(items), min(wait_s, MAX_WAIT_S)).result().refused

    def exposed_release(self, request_id: str) -> None:
        self._refused.pop(request_id, None)
        self._table.release(self._session.lease(request_id))

    def exposed_set_items_data(self, request_id: str, item_id: int, ok: bool) -> None:
        self._table.set_data(self._session.lease(request_id), (item_id,), ok)

    def exposed_get_items_data(self, request_id: str, item_id: int, wait_s: float) -> str:
        lease = self._session.lease(request_id)
        return self._table.get_data(lease, (item_id,), min(wait_s, MAX_WAIT_S)).result()[0]

    def exposed_set_items_embed(self, item_id: int, ok: bool) -> str:
        return self._table.set_embed(self._session.owner, (item_id,), (ok,))[0]

    def exposed_get_items_embed(self, item_id: int) -> str:
        return self._table.get_embed(self._session.owner, (item_id,))[0]

    def exposed_acquire_permits(
        self, requests: tuple[tuple[str, int, float], ...], wait_s: float
    ) -> tuple[tuple[str, ...], str]:
        """``requests``: the fields of each PermitRequest. Returns those of PermitsReply."""
        permit_requests = [PermitRequest(*fields) for fields in requests]
        call = self._table.acquire_permits(self._session.owner, permit_requests, min(wait_s, MAX_WAIT_S))
        reply = call.result()
        return reply.granted, reply.promised

    def exposed_release_permit(self, name: str) -> None:
        self._table.release_permit(self._session.lease(name))

    def exposed_set_name(self, name: bytes, image: ImageTuple) -> None:
        _ = self._session
        self._table.set_names((name,), (NamedImage(AllocItem(*image[:4]), *image[4:]),))

    def exposed_get_name(self, name: bytes) -> ImageTuple | None:
        _ = self._session
        (image,) = self._table.get_names((name,))
        return None if image is None else _image_tuple(image)

    def exposed_look_up(self, key: bytes, num_tokens: int, data_nbytes: int, embed_nbytes: int) -> tuple[str, int]:
        """The fields of a StoredImage."""
        _ = self._session
        (found,) = self._table.look_up((AllocItem(key, num_tokens, data_nbytes, embed_nbytes),))
        return found.state, found.token_start

    def exposed_beat(self) -> None:
        self._table.beat(self._session.owner)

    def exposed_unregister(self) -> None:
        self._table.unregister(self._session.owner)


def _record_tuple(record: MediaRecord) -> RecordTuple:
    data = None if record.data is None else _handle_tuple(record.data)
    return record.item_id, record.token_start, record.state, data, _handle_tuple(record.embed)


def _image_tuple(image: NamedImage) -> ImageTuple:
    item = image.item
    spec = item.key, item.num_tokens, item.data_nbytes, item.embed_nbytes
    return *spec, image.width, image.height, image.loading_nbytes


def _handle_tuple(handle: Handle) -> HandleTuple:
    return handle.generation, handle.offset, handle.nbytes


class ServiceThreads:
    """The threads of v1's connections. ``new_service`` makes the service of one."""

    def __init__(self, new_service: Callable[[], CacheService]) -> None:
        self._new_service = new_service
        self._connections: dict[threading.Thread, socket.socket] = {}
        self._is_closed = False

    def serve(self, connected: socket.socket) -> None:
        """Start a thread for the connection, which owns it."""
        if self._is_closed:
            connected.close()
            return
        thread = threading.Thread(target=self._run, args=(connected,), name="v1", daemon=True)
        self._connections[thread] = connected
        try:
            thread.start()
        except RuntimeError:  # the machine has no thread left; the listener closes the connection
            del self._connections[thread]
            raise

    def close(self) -> None:
        """End all connections, and those that still come."""
        self._is_closed = True
        left = dict(self._connections)
        for connected in left.values():
            _shut_down(connected)
        for thread in left:
            if thread.ident is not None:  # else it is about to start, and finds its connection shut down
                thread.join(_JOIN_S)

    def _run(self, connected: socket.socket) -> None:
        try:
            with connected:
                try:
                    # rpyc by itself compresses what is larger than 3000 bytes.
                    channel = _BoundedChannel(SocketStream(connected), compress=False)
                    rpyc.connect_channel(channel, self._new_service(), dict(_CONFIG)).serve_all()
                finally:
                    _shut_down(connected)
        except (EOFError, ConnectionError) as error:
            logger.debug("v1: a connection has ended (%s)", error)
        except Exception:  # one client's trouble ends its connection, not the others'
            logger.exception("v1: a connection was ended")
        finally:
            del self._connections[threading.current_thread()]


def _shut_down(connected: socket.socket) -> None:
    """Both sides see the end, even if the descriptor has duplicates or a thread waits on it."""
    with contextlib.suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)
