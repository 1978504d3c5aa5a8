"""Whole messages over a stream socket, each behind its length. Knows nothing of what is in them."""

from __future__ import annotations

import contextlib
import socket
import struct

MAX_FRAME_NBYTES = 64 << 20
"""A million images; whoever announces more does not speak in frames."""
_LENGTH = struct.Struct("<I")
_BUFFER_NBYTES = 1 << 16
"""What most messages fit into, so that one comes with one system call."""


class Frames:
    """One end of a connection, whose socket it owns. For one thread at a time."""

    def __init__(self, connected: socket.socket, timeout_s: float = 0.0) -> None:
        """``timeout_s``: how long one wait for the other side may take; 0: for ever."""
        # The kernel's timeouts: Python's own are another system call, and a turn of the interpreter's lock, each time.
        limit = struct.pack("@ll", *divmod(int(timeout_s * 1e6), 10**6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connected.setsockopt(socket.SOL_SOCKET, option, limit)
        self._socket = connected
        self._reader = connected.makefile("rb", _BUFFER_NBYTES)

    def send(self, message: bytes) -> None:
        """Raises ConnectionError when the other side is gone, TimeoutError when it does not take it."""
        try:
            self._socket.sendall(_LENGTH.pack(len(message)) + message)
        except BlockingIOError:
            raise TimeoutError("the other side does not read") from None

    def receive(self) -> bytes:
        """Waits for the next one. Raises EOFError at the end of the stream, TimeoutError when nothing comes, and
        ConnectionError for what cannot be a frame: nothing behind it can be understood."""
        (nbytes,) = _LENGTH.unpack(self._read(_LENGTH.size))
        if nbytes > MAX_FRAME_NBYTES:
            raise ConnectionError(f"a frame of {nbytes} bytes was announced")
        return self._read(nbytes)

    def close(self) -> None:
        """The other side sees the end of the stream, whoever else has a duplicate of the descriptor."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.close()
        self._socket.close()

    def _read(self, nbytes: int) -> bytes:
        data: bytes | None = self._reader.read(nbytes)
        if data is None:
            raise TimeoutError("the other side does not answer")
        if len(data) < nbytes:
            raise EOFError("the stream has ended")
        return data
