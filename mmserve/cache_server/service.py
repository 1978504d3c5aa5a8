"""The table's RPC on a Unix socket: v1 takes and gives scalars, one item a call; v2 one msgpack blob each way.

Everything that crosses is immutable and passes by value: a list or a struct would become a remote reference.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import weakref
from pathlib import Path
from typing import Any

import rpyc
from rpyc.utils.server import ThreadedServer

from mmserve.cache_server.blobs import (
    ALLOC_REPLY,
    ALLOC_REQUEST,
    EMBED_STATES,
    GET_DATA_REQUEST,
    GET_EMBED_REQUEST,
    ITEM_STATES,
    RELEASE_REQUEST,
    SET_DATA_REQUEST,
    SET_EMBED_REQUEST,
)
from mmserve.cache_server.hangups import Hangups
from mmserve.cache_server.item import Lease
from mmserve.cache_server.link import MAX_WAIT_S
from mmserve.cache_server.table import Table
from mmserve.cache_server.turns import Claim
from mmserve.messages.cache import AllocItem, MediaRecord
from mmserve.messages.media import Handle

logger = logging.getLogger(__name__)

_CONFIG = {"allow_pickle": False, "allow_safe_attrs": False, "include_local_traceback": False, "close_catchall": True}
_NOTHING = b""
_GOODBYE_S = 2.0
"""How long a connection's thread may take to end; one that waits for space is woken by its hang-up."""
HandleTuple = tuple[int, int, int]
RecordTuple = tuple[int, int, str, HandleTuple | None, HandleTuple]


class CacheService(rpyc.Service):  # type: ignore[misc]
    """One connection. The first call must be ``hello``."""

    def __init__(self, table: Table, hangups: Hangups) -> None:
        self._table = table
        self._hangups = hangups
        self._owner: str | None = None
        self._ended = threading.Lock()
        self._refused: dict[str, list[AllocItem]] = {}
        """v1: items so far of requests of which one did not fit; they hold nothing."""

    def on_connect(self, conn: Any) -> None:
        conn._channel.compress = False  # rpyc offers no other place to say so
        self._fd = conn.fileno()

    def on_disconnect(self, conn: Any) -> None:
        self._end()

    def _end(self) -> None:
        """Once, from whoever notices first that the connection is over."""
        if self._owner is not None and self._ended.acquire(blocking=False):
            self._table.goodbye(self._owner)

    def _lease(self, request_id: str) -> Lease:
        if not self._owner or not request_id:
            raise ValueError("say hello first, and name a request")
        return Lease(self._owner, request_id)

    def exposed_hello(self, owner: str) -> None:
        """Who is calling; leases are freed when the owner's last connection ends."""
        if self._owner is not None or not owner:
            raise ValueError("hello is said once")
        self._table.hello(owner)
        self._owner = owner
        self._hangups.watch(self._fd, self._end)

    def exposed_leaving(self) -> None:
        """The owner ends in good order."""
        self._table.leaving(self._encoder())

    # turns at decoding, the same in v1 and v2

    def exposed_begin_turns(self, claims: tuple[tuple[str, int, float], ...], wait_s: float) -> tuple[str, ...]:
        """``claims``: name of the turn, bytes of pixels, arrival of the request."""
        wanted = [Claim(arrival_s, self._lease(name), nbytes) for name, nbytes, arrival_s in claims]
        return self._table.begin_turns(wanted, min(wait_s, MAX_WAIT_S)) if wanted else ()

    def exposed_end_turn(self, request_id: str) -> None:
        self._table.end_turn(self._lease(request_id))

    # v1: one item a call

    def exposed_alloc(
        self, request_id: str, key: bytes, num_tokens: int, data_nbytes: int, embed_nbytes: int
    ) -> tuple[str, RecordTuple | None]:
        """Add one item to the request. ("", record), or (why not, None) with all of the request's items released:
        from then on items are only noted, until ``await_alloc``."""
        lease, item = self._lease(request_id), AllocItem(key, num_tokens, data_nbytes, embed_nbytes)
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
        return self._table.alloc(self._lease(request_id), tuple(items), min(wait_s, MAX_WAIT_S)).refused

    def exposed_release(self, request_id: str) -> None:
        self._refused.pop(request_id, None)
        self._table.release(self._lease(request_id))

    def exposed_set_items_data(self, request_id: str, item_id: int, ok: bool) -> None:
        self._table.set_data(self._lease(request_id), (item_id,), ok)

    def exposed_get_items_data(self, request_id: str, item_id: int, wait_s: float) -> str:
        return self._table.get_data(self._lease(request_id), (item_id,), min(wait_s, MAX_WAIT_S))[0]

    def exposed_set_items_embed(self, item_id: int, ok: bool) -> str:
        return self._table.set_embed(self._encoder(), (item_id,), (ok,))[0]

    def exposed_get_items_embed(self, item_id: int) -> str:
        return self._table.get_embed(self._encoder(), (item_id,))[0]

    # v2: one blob a call

    def exposed_alloc_v2(self, blob: bytes) -> bytes:
        request = ALLOC_REQUEST.decode(blob)
        lease, wait_s = self._lease(request.request_id), min(request.wait_s, MAX_WAIT_S)
        return ALLOC_REPLY.encode(self._table.alloc(lease, request.items, wait_s))

    def exposed_release_v2(self, blob: bytes) -> bytes:
        self._table.release(self._lease(RELEASE_REQUEST.decode(blob).request_id))
        return _NOTHING

    def exposed_set_items_data_v2(self, blob: bytes) -> bytes:
        request = SET_DATA_REQUEST.decode(blob)
        self._table.set_data(self._lease(request.request_id), request.item_ids, request.ok)
        return _NOTHING

    def exposed_get_items_data_v2(self, blob: bytes) -> bytes:
        request = GET_DATA_REQUEST.decode(blob)
        lease, wait_s = self._lease(request.request_id), min(request.wait_s, MAX_WAIT_S)
        return ITEM_STATES.encode(self._table.get_data(lease, request.item_ids, wait_s))

    def exposed_set_items_embed_v2(self, blob: bytes) -> bytes:
        request = SET_EMBED_REQUEST.decode(blob)
        return EMBED_STATES.encode(self._table.set_embed(self._encoder(), request.item_ids, request.ok))

    def exposed_get_items_embed_v2(self, blob: bytes) -> bytes:
        request = GET_EMBED_REQUEST.decode(blob)
        return EMBED_STATES.encode(self._table.get_embed(self._encoder(), request.item_ids))

    def _encoder(self) -> str:
        if self._owner is None:
            raise ValueError("say hello first")
        return self._owner


def _record_tuple(record: MediaRecord) -> RecordTuple:
    data = None if record.data is None else _handle_tuple(record.data)
    return record.item_id, record.token_start, record.state, data, _handle_tuple(record.embed)


def _handle_tuple(handle: Handle) -> HandleTuple:
    return handle.generation, handle.offset, handle.nbytes


class _ServiceOfConnection:
    """Makes one CacheService per connection; rpyc asks its service only for these two things."""

    def __init__(self, table: Table, hangups: Hangups) -> None:
        self._table, self._hangups = table, hangups

    def get_service_name(self) -> str:
        return "CACHE"

    def _connect(self, channel: Any, config: Any) -> Any:
        return CacheService(self._table, self._hangups)._connect(channel, config)


class _Server(ThreadedServer):  # type: ignore[misc]
    """rpyc's own ``close`` pulls descriptors away under its threads; here they see the end of their stream first."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()

    def _accept_method(self, sock: socket.socket) -> None:
        thread = threading.Thread(target=self._authenticate_and_serve_client, args=(sock,), daemon=True)
        self._threads.add(thread)
        thread.start()

    def close(self) -> None:
        for sock in tuple(self.clients):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in tuple(self._threads):
            thread.join(_GOODBYE_S)
        super().close()


class CacheRpc:
    """The listening socket and a thread per connection. ``with``: listens on entry, ends everything on exit."""

    def __init__(self, table: Table, path: Path) -> None:
        self._path = path
        self._path.unlink(missing_ok=True)
        self._hangups = Hangups()
        quiet = logging.getLogger("mmserve.cache_server.rpyc")
        quiet.setLevel(logging.WARNING)
        service = _ServiceOfConnection(table, self._hangups)
        self._server = _Server(service, socket_path=str(path), protocol_config=dict(_CONFIG), logger=quiet)
        self._thread = threading.Thread(target=self._server.start, name="cache-rpc", daemon=True)

    def __enter__(self) -> CacheRpc:
        self._server._listen()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self._thread.join()
        self._hangups.close()
        self._path.unlink(missing_ok=True)

    def wait(self, timeout_s: float) -> None:
        """Sleep while the listener lives. Raises RuntimeError when it has ended by itself."""
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            raise RuntimeError("the cache server's listener has ended")
