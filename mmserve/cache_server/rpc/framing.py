"""Messages over a stream socket, each with a prefix of 4 bytes that has its length."""

from __future__ import annotations

import contextlib
import socket
import struct

MAX_FRAME_NBYTES = 64 << 20
"""Room for a million images. A longer length shows that the other side does not send frames."""
_LENGTH = struct.Struct("<I")
_BUFFER_NBYTES = 1 << 16
"""Most messages fit into it and are received with one system call."""


def frame(message: bytes) -> bytes:
    """The message with its length in front."""
    return _LENGTH.pack(len(message)) + message


def _checked(nbytes: int) -> int:
    if nbytes > MAX_FRAME_NBYTES:
        raise ConnectionError(f"a frame of {nbytes} bytes was announced")
    return nbytes


def set_timeouts(connected: socket.socket, timeout_s: float) -> None:
    """Limit each system call on a blocking socket; 0: no limit. A call that takes longer raises BlockingIOError."""
    # The kernel's timeouts: Python's own cost another system call each time, and release the interpreter's lock.
    limit = struct.pack("@ll", *divmod(int(timeout_s * 1e6), 10**6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connected.setsockopt(socket.SOL_SOCKET, option, limit)


class FrameBuffer:
    """Cuts received bytes into messages, for a socket that does not block."""

    def __init__(self) -> None:
        self._received: bytes | bytearray = b""

    def feed(self, data: bytes) -> None:
        if not self._received:
            self._received = data
            return
        if isinstance(self._received, bytes):
            self._received = bytearray(self._received)
        self._received += data

    def next(self) -> bytes | None:
        """The next whole message. Raises ConnectionError for what cannot be a frame: nothing behind it is readable."""
        received = self._received
        if len(received) < _LENGTH.size:
            return None
        end = _LENGTH.size + _checked(_LENGTH.unpack_from(received)[0])
        if len(received) < end:
            return None
        self._received = received[end:]
        return bytes(received[_LENGTH.size : end])


class FramedSocket:
    """One end of a connection, on which calls block. Owns the socket. For one thread at a time."""

    def __init__(self, connected: socket.socket, timeout_s: float = 0.0) -> None:
        """``timeout_s``: how long one wait for the other side may take; 0: for ever."""
        self._socket = connected
        self._timeout_s = -1.0
        self.set_timeout(timeout_s)
        self._reader = connected.makefile("rb", _BUFFER_NBYTES)

    def set_timeout(self, timeout_s: float) -> None:
        """How long one wait for the other side may take from now on; 0: for ever."""
        if timeout_s != self._timeout_s:
            self._timeout_s = timeout_s
            set_timeouts(self._socket, timeout_s)

    def send(self, message: bytes) -> None:
        """Raises ConnectionError when the other side is gone, TimeoutError when it does not read."""
        try:
            self._socket.sendall(frame(message))
        except BlockingIOError:
            raise TimeoutError("the other side does not read") from None

    def receive(self) -> bytes:
        """Wait for the next message. Raises EOFError at the end of the stream, TimeoutError when nothing comes, and
        ConnectionError for what cannot be a frame."""
        (nbytes,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return self._read(_checked(nbytes))

    def close(self) -> None:
        """The other side sees the end of the stream, even if the descriptor has duplicates."""
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
