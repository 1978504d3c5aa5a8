"""Explains the published 43 ms of an allocation RPC: lists as arguments of an rpyc call over TCP.

rpyc passes a list as a remote reference. Fetching and dropping it leaves the caller with several small messages to
write before its next call. Nagle's algorithm holds the last of them until the peer acknowledges the one before, and
the peer delays its acknowledgement by 40 ms. No code of mmserve is used here.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import rpyc
from rpyc.core.stream import SocketStream
from rpyc.utils.classic import obtain
from rpyc.utils.server import ThreadedServer

_CONFIG = {"allow_pickle": True, "allow_all_attrs": True, "allow_public_attrs": True}
_IMAGE_TOKENS = 576
_WARM_UPS = 2
_PAUSE_S = 0.02
"""Pause between calls, as between requests. Without it, some acknowledgements are not delayed."""


class _ListService(rpyc.Service):
    """Answers an allocation whose arguments are lists, with records by value."""

    nodelay = False

    def on_connect(self, conn: Any) -> None:
        conn._channel.stream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(self.nodelay))

    def exposed_alloc(self, keys: Any, token_counts: Any) -> tuple[tuple[str, int, int], ...]:
        pairs = zip(obtain(keys), obtain(token_counts), strict=True)
        return tuple((key, number, count) for number, (key, count) in enumerate(pairs))


class _NodelayListService(_ListService):
    nodelay = True


def _serve(nodelay: bool, port_to: Connection) -> None:
    service = _NodelayListService if nodelay else _ListService
    server = ThreadedServer(service, hostname="127.0.0.1", port=0, protocol_config=_CONFIG)
    server._listen()
    port_to.send(server.port)
    server.start()


@contextlib.contextmanager
def _connected(*, nodelay: bool) -> Iterator[Any]:
    context = multiprocessing.get_context("spawn")
    port_from, port_to = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(nodelay, port_to), daemon=True)
    process.start()
    try:
        stream = SocketStream.connect("127.0.0.1", port_from.recv(), nodelay=nodelay)
        connection = rpyc.connect_stream(stream, config=_CONFIG)
        yield connection
        connection.close()
    finally:
        process.terminate()
        process.join()


def list_alloc_ms(counts: list[int], repeats: int, *, nodelay: bool) -> dict[int, list[float]]:
    """Number of images -> milliseconds of each of ``repeats`` calls, after a warm-up."""
    with _connected(nodelay=nodelay) as connection:
        return {count: _samples_ms(connection, count, repeats) for count in counts}


def _samples_ms(connection: Any, num_images: int, repeats: int) -> list[float]:
    keys = [f"{number:032x}" for number in range(num_images)]
    samples = []
    for _ in range(_WARM_UPS + repeats):
        time.sleep(_PAUSE_S)
        started_s = time.perf_counter()
        records = connection.root.alloc(keys, [_IMAGE_TOKENS] * num_images)
        samples.append((time.perf_counter() - started_s) * 1e3)
        assert len(records) == num_images
    return samples[_WARM_UPS:]
