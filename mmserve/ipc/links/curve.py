"""TCP sockets between machines, encrypted and authenticated by CURVE with the keys of a ``ClusterKey``.

libzmq accepts any key of who connects unless a handler (ZAP) refuses it. The handler is asked about every socket of its
context, so who listens has a context of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from mmserve.ipc.links.cluster_key import ClusterKey
from mmserve.ipc.links.snapshots import hear_all_questions
from mmserve.runtime.errors import StartupError
from mmserve.runtime.shortage import OF_A_LINK, has_descriptors

MAX_MESSAGE_NBYTES = 256 << 20
"""A peer that announces a longer message is disconnected."""
_HANDSHAKE_MS = 10_000
_RECONNECT_MS = 200


class SecureSocket:
    """A socket, and the news of connections that ended."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self.socket = socket
        self.ended: zmq.Socket[bytes] = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        """Readable when a connection has ended, whoever had it."""

    def any_ended(self) -> bool:
        """True if a connection has ended since the last call."""
        found = False
        while True:
            try:
                self.ended.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return found
            found = True

    def close(self) -> None:
        self.socket.disable_monitor()
        self.ended.close(linger=0)
        self.socket.close(linger=0)


@contextmanager
def listening(endpoint: str, key: ClusterKey, flag: str) -> Iterator[SecureSocket]:
    """A ROUTER that only holders of the key can talk to. Raises StartupError that names ``flag``."""
    with _context() as context, _guarded(context, key), closing(SecureSocket(_socket(context, zmq.ROUTER))) as secure:
        secure.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        _bind(secure.socket, endpoint, key, flag)
        yield secure


@contextmanager
def publishing(endpoint: str, key: ClusterKey, flag: str, unread: int) -> Iterator[zmq.Socket[bytes]]:
    """An XPUB that only holders of the key hear, and may ask (``snapshots``). ``unread``: messages kept for each.
    Raises StartupError."""
    with _context() as context, _guarded(context, key), closing(_socket(context, zmq.XPUB)) as socket:
        socket.set_hwm(unread)
        hear_all_questions(socket)
        _bind(socket, endpoint, key, flag)
        yield socket


def use_key(socket: zmq.Socket[Any], key: ClusterKey) -> None:
    """Before ``connect`` to a socket of ``listening`` or ``publishing``."""
    socket.curve_serverkey = key.listening.public
    socket.curve_publickey, socket.curve_secretkey = key.connecting.public, key.connecting.secret


@contextmanager
def connected(endpoint: str, key: ClusterKey) -> Iterator[SecureSocket]:
    """A DEALER that connects, again and again if it has to, to the holder of the key that listens there. Without a
    connection ``send`` waits, or raises zmq.Again: what was said to nobody is not kept for the next one."""
    with _context() as context, closing(SecureSocket(_socket(context, zmq.DEALER))) as secure:
        socket = secure.socket
        use_key(socket, key)
        socket.setsockopt(zmq.RECONNECT_IVL, _RECONNECT_MS)
        socket.setsockopt(zmq.IMMEDIATE, 1)
        socket.connect(endpoint)
        yield secure


class _Known:
    """Asked by the handler whether a key may connect."""

    def __init__(self, public: bytes) -> None:
        self._public = public

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._public


@contextmanager
def _guarded(context: zmq.Context[zmq.Socket[bytes]], key: ClusterKey) -> Iterator[None]:
    """Within it, sockets of ``context`` accept holders of the key and nobody else."""
    handler = ThreadAuthenticator(context)
    handler.start()
    try:
        handler.configure_curve_callback("*", _Known(key.connecting.public))
        yield
    finally:
        handler.stop()


def _bind(socket: zmq.Socket[bytes], endpoint: str, key: ClusterKey, flag: str) -> None:
    socket.curve_server = True
    socket.curve_publickey, socket.curve_secretkey = key.listening.public, key.listening.secret
    try:
        socket.bind(endpoint)
    except zmq.ZMQError as error:
        raise StartupError(f"{flag}: this machine cannot listen at {endpoint}: {error.strerror}") from None


@contextmanager
def _context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    if not has_descriptors(OF_A_LINK):
        raise StartupError("too few file descriptors are left for the links to other machines: raise `ulimit -n`")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        yield context
    finally:
        context.destroy(linger=0)


def _socket(context: zmq.Context[zmq.Socket[bytes]], kind: int) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = context.socket(kind)
    socket.setsockopt(zmq.LINGER, 0)
    socket.set_hwm(0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_NBYTES)
    socket.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    socket.setsockopt(zmq.IPV6, 1)
    return socket
