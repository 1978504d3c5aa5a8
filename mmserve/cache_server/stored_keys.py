"""Tells the router which embeddings are in the arena, for its reports to fronts: an XPUB on this machine."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import zmq

from mmserve.cache_server.entry_store import EmbeddingChange
from mmserve.cluster.scale.announced import Announced
from mmserve.cluster.scale.reports import encoded
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.ipc.links.snapshots import hear_all_questions, is_asked
from mmserve.messages.media import short_key
from mmserve.runtime.errors import StartupError
from mmserve.runtime.shortage import OF_A_LINK, has_descriptors

_UNREAD = 1000
"""Reports. A router that reads none of them misses some, and asks for a snapshot."""

_MAX_QUESTION_NBYTES = 1024


class StoredKeys:
    """Called by the cache server's loop. Says nothing while nothing changes and nobody asks."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._announced = Announced("pictures", secrets.randbits(62))

    def publish(self, changes: Sequence[EmbeddingChange]) -> None:
        """Those since the last call, in their order."""
        for key, num_tokens in changes:
            if num_tokens:
                self._announced.add(short_key(key))
            else:
                self._announced.discard(short_key(key))
        asked = is_asked(self._socket)
        if changes or asked:
            self._socket.send(encoded(self._announced.report(snapshot=asked)))


@contextmanager
def telling_router(endpoints: Endpoints) -> Iterator[StoredKeys]:
    """Raises StartupError."""
    if not has_descriptors(OF_A_LINK):
        raise StartupError("too few file descriptors are left for reports: raise `ulimit -n`")
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.XPUB)
    try:
        socket.set_hwm(_UNREAD)
        hear_all_questions(socket)
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_QUESTION_NBYTES)
        # With a domain, libzmq refuses peers of the protocol's first versions, for which any bytes are messages.
        socket.setsockopt(zmq.ZAP_DOMAIN, b"mmserve")
        socket.bind(endpoints.cache_holdings)
        yield StoredKeys(socket)
    finally:
        socket.close(linger=0)
