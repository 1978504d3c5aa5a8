"""Encrypted and authenticated ZeroMQ between a front and its replicas: CURVE, with keys that follow from their secret.

The replica binds. libzmq accepts any client key unless a ZAP handler refuses it, so a thread of the binding side knows
the one key that fronts have.
"""

from __future__ import annotations

import hashlib
from types import TracebackType
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils import z85

_DOMAIN = b"mmserve-front"


class FrontKeys:
    """Both ends derive them from the same secret."""

    def __init__(self, secret: bytes) -> None:
        self._server, self._client = _key(secret, b"replica"), _key(secret, b"front")
        self._server_public, self._client_public = zmq.curve_public(self._server), zmq.curve_public(self._client)

    def bind_side(self, socket: zmq.Socket[bytes]) -> None:
        """Before ``bind``, in a context with ``Fronts``."""
        socket.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        socket.curve_server = True
        socket.curve_secretkey, socket.curve_publickey = self._server, self._server_public

    def connect_side(self, socket: zmq.Socket[Any]) -> None:
        """Before ``connect``."""
        socket.curve_serverkey = self._server_public
        socket.curve_secretkey, socket.curve_publickey = self._client, self._client_public

    def callback(self, domain: str, key: bytes) -> bool:
        """pyzmq's question whether a client's public key, in Z85, is known."""
        return key == self._client_public


class Fronts:
    """A thread that lets sockets of ``context`` with ``bind_side`` accept fronts and nobody else."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], keys: FrontKeys) -> None:
        self._thread = ThreadAuthenticator(context)
        self._keys = keys

    def __enter__(self) -> Fronts:
        self._thread.start()
        self._thread.configure_curve_callback(_DOMAIN.decode(), self._keys)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.stop()


def _key(secret: bytes, label: bytes) -> bytes:
    return z85.encode(hashlib.sha256(b"mmserve " + label + b" " + secret).digest())
