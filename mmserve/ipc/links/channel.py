"""Typed one-way message links: ZeroMQ push/pull over Unix sockets. Receivers bind, senders connect.

A message that does not decode is logged and skipped, so that a bad message does not end a receiver's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import zmq

from mmserve.ipc.links.codec import Codec
from mmserve.ipc.links.lockstep import LockstepReceiver
from mmserve.runtime.shortage import check_descriptors

T = TypeVar("T")
_MAX_MESSAGE_NBYTES = 256 << 20
"""A peer that announces a longer message is disconnected. The longest are prompts: 8 bytes a token."""
_MESSAGES_AT_ONCE = 64
"""An AsyncReceiver gives up control after this many, if more are there already: with its handling, a message takes a
few microseconds."""
logger = logging.getLogger(__name__)


class Sender(Generic[T]):
    """Sends messages without blocking. The queue is unlimited, or holds ``limit`` messages and drops further ones."""

    def __init__(self, endpoint: str, type_: Any, *, limit: int = 0) -> None:
        """Raises StartupError if this process has too few descriptors left."""
        check_descriptors()
        self._codec: Codec[T] = Codec(type_)
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PUSH)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, limit)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self._socket.connect(endpoint)

    def send(self, message: T) -> bool:
        """Send a message. Returns False if it was dropped because the queue is full."""
        try:
            self._socket.send(self._codec.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self, *, linger_ms: int = 0) -> None:
        self._socket.close(linger=linger_ms)


def _bind(socket: Any, endpoint: str, limit: int = 0) -> None:
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, limit)
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_MESSAGE_NBYTES)
    # With a domain, libzmq refuses peers of the protocol's first versions, for which any bytes are messages.
    socket.setsockopt(zmq.ZAP_DOMAIN, b"mmserve")
    socket.bind(endpoint)


class Receiver(Generic[T]):
    """Receives messages in a synchronous main loop."""

    def __init__(self, endpoint: str, type_: Any) -> None:
        check_descriptors()
        self._codec: Codec[T] = Codec(type_)
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
        _bind(self._socket, endpoint)

    def drain(self, *, block: bool, timeout_s: float | None = None) -> list[T]:
        """All messages received so far. ``block``: wait for the first, at most timeout_s (None: without limit)."""
        if block:
            self._socket.poll(None if timeout_s is None else int(timeout_s * 1000))
        messages: list[T] = []
        while True:
            try:
                data = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return messages
            if (message := _decode(self._codec, data)) is not None:
                messages.append(message)

    def receive(self) -> T:
        """Wait for the next message, without limit."""
        while True:
            if (message := _decode(self._codec, self._socket.recv())) is not None:
                return message

    def close(self) -> None:
        self._socket.close(linger=0)


Source = Receiver[Any] | LockstepReceiver[Any] | zmq.Socket[bytes]


def wait_for_any(sources: Sequence[Source], timeout_s: float) -> list[Source]:
    """Wait until one of them has a message, at most timeout_s. Returns those that have one."""
    sockets = [_pollable(source) for source in sources]
    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    ready = dict(poller.poll(int(timeout_s * 1000)))
    return [source for source, socket in zip(sources, sockets, strict=True) if socket in ready]


def _pollable(source: Source) -> zmq.Socket[bytes] | int:
    if isinstance(source, LockstepReceiver):
        return source.fileno()
    return source._socket if isinstance(source, Receiver) else source


class AsyncReceiver(Generic[T]):
    """Receives messages on an event loop, for one iterator.

    ``limit``: how many messages of each sender may wait here, 0 for any number. Further ones wait at their sender.

    Watches the socket's descriptor itself: with ``zmq.asyncio``, a process that answers each message at once took 1.4
    times as long.
    """

    def __init__(self, endpoint: str, type_: Any, *, limit: int = 0) -> None:
        check_descriptors()
        self._codec: Codec[T] = Codec(type_)
        self._socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PULL)
        self._arrived = asyncio.Event()
        """Set when messages may have arrived since the socket was found empty."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """The one that watches the socket."""
        _bind(self._socket, endpoint, limit)

    async def __aiter__(self) -> AsyncIterator[T]:
        self._watch()
        while True:
            self._arrived.clear()
            for _ in range(_MESSAGES_AT_ONCE):
                try:
                    data = self._socket.recv(zmq.NOBLOCK)
                except zmq.Again:
                    break
                if (message := _decode(self._codec, data)) is not None:
                    yield message
            else:
                self._arrived.set()
                await asyncio.sleep(0)
            await self._arrived.wait()

    def close(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._descriptor)
        self._socket.close(linger=0)

    def _watch(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._descriptor, self._on_readable)

    def _on_readable(self) -> None:
        """The descriptor stays readable until the socket is asked what has happened."""
        self._socket.get(zmq.EVENTS)
        self._arrived.set()

    @property
    def _descriptor(self) -> int:
        return int(self._socket.get(zmq.FD))


def _decode(codec: Codec[T], data: bytes) -> T | None:
    try:
        return codec.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        logger.exception("skipped a message of %d bytes that does not decode", len(data))
        return None
