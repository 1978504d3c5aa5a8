"""Typed one-way links of router, ranks and node links: packets of Unix sockets. Receivers listen, senders connect.

Both ends work in turns: the sender waits for the answer to its last messages before it sends more, so a message that
does not decode ends the receiver (BrokenLink). A packet goes from one thread to the other with one wake-up. With
ZeroMQ, whose own threads send and receive, it takes three at a time when all processes wait: a plan and its result
took 0.3 ms, and 0.1 so.
"""

from __future__ import annotations

import os
import select
import socket
import time
from array import array
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from mmserve.ipc.links.codec import Codec
from mmserve.runtime.shortage import check_descriptors

T = TypeVar("T")
_PACKET_NBYTES = 32 << 10
"""A longer message comes as a file in memory, whose descriptor is in the packet. So a socket's buffer holds more
messages than are ever under way, and sending does not wait for the receiver."""
_IN_FILE = b"\0"
"""The packet with a file. No message is so short."""
_ROOM_FOR_FILE = socket.CMSG_SPACE(array("i").itemsize)
_CONNECT_AGAIN_S = 0.02
_BACKLOG = 64


class BrokenLink(Exception):
    """A message of a lockstep link does not decode, or is not the expected one. Sender and receiver must restart."""


class LockstepSender(Generic[T]):
    """Connects when the first message is sent, and waits until the receiver listens.

    Messages to a receiver that has ended are dropped: who restarts it restarts this end too.
    """

    def __init__(self, path: Path, type_: Any) -> None:
        self._path = path
        self._codec: Codec[T] = Codec(type_)
        self._socket: socket.socket | None = None

    def send(self, message: T) -> None:
        self.send_encoded(self._codec.encode(message))

    def send_encoded(self, data: bytes) -> None:
        """Send a message that another process has encoded."""
        if self._socket is None:
            self._socket = _connected(self._path)
        try:
            if len(data) <= _PACKET_NBYTES:
                self._socket.send(data)
            else:
                _send_file(self._socket, data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


def _connected(path: Path) -> socket.socket:
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            connection.connect(str(path))
            return connection
        except (FileNotFoundError, ConnectionRefusedError):  # not yet, or of a process that has ended
            connection.close()
            time.sleep(_CONNECT_AGAIN_S)


def _send_file(connection: socket.socket, data: bytes) -> None:
    file = os.memfd_create("message")
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        socket.send_fds(connection, [_IN_FILE], [file])
    finally:
        os.close(file)


class LockstepReceiver(Generic[T]):
    """Receives the messages of any number of senders in a synchronous main loop."""

    def __init__(self, path: Path, type_: Any) -> None:
        """Raises StartupError if this process has too few descriptors left."""
        check_descriptors()
        self._codec: Codec[T] = Codec(type_)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path.unlink(missing_ok=True)  # of a predecessor
        self._listener.bind(str(path))
        self._listener.listen(_BACKLOG)
        self._poll = select.epoll()
        self._poll.register(self._listener, select.EPOLLIN)
        self._connections: dict[int, socket.socket] = {}

    def fileno(self) -> int:
        """Readable when ``drain`` would not wait, or when a sender has come or gone."""
        return self._poll.fileno()

    def drain(self, *, block: bool, timeout_s: float | None = None) -> list[T]:
        """Messages that have arrived. ``block``: wait for the first, at most timeout_s (None: without limit).

        Raises BrokenLink.
        """
        end_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            wait_s = 0.0 if not block else -1.0 if end_s is None else max(0.0, end_s - time.monotonic())
            ready = self._poll.poll(wait_s)
            messages = [message for number, _ in ready if (message := self._take(number)) is not None]
            if messages or not ready:
                return messages

    def close(self) -> None:
        self._poll.close()
        self._listener.close()
        for connection in self._connections.values():
            connection.close()

    def _take(self, number: int) -> T | None:
        """The message of the connection with this descriptor; None: a sender has come or gone."""
        if (connection := self._connections.get(number)) is None:
            accepted, _ = self._listener.accept()
            self._connections[accepted.fileno()] = accepted
            self._poll.register(accepted, select.EPOLLIN)
            return None
        try:
            data, files, _, _ = connection.recvmsg(_PACKET_NBYTES, _ROOM_FOR_FILE, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            data, files = b"", []
        if not data:
            self._poll.unregister(connection)
            self._connections.pop(number).close()
            return None
        if files:
            data = _contents(array("i", files[0][2])[0])
        try:
            return self._codec.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BrokenLink(f"received a message of {len(data)} bytes that does not decode: {error}") from error


def _contents(file: int) -> bytes:
    with os.fdopen(file, "rb") as opened:
        opened.seek(0)
        return opened.read()
