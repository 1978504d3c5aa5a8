"""Messages between supervisor and fork server, each with its descriptors, over a pair of packet sockets."""

from __future__ import annotations

import array
import os
import socket
from typing import Literal

import msgspec

_MAX_NBYTES = 1 << 16
Descriptor = Literal["report_fd", "rendezvous_fd", "listen_fd", "fork_link_fd"]
"""Fields of ChildSpec: descriptors that differ from process to process. The fork server has the others itself."""
_MAX_FDS = 4


class ForkRequest(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """To the fork server: become this process. With the descriptors that ``fds`` names."""

    role: str
    index: int
    title: str
    target: str
    fds: tuple[Descriptor, ...]
    preloads: tuple[str, ...] = ()
    """Of a fork server: see ChildSpec, as for all these fields."""


class Serving(msgspec.Struct, frozen=True, tag=True):
    """From the fork server, once: it has imported its modules and takes requests."""


class Forked(msgspec.Struct, frozen=True, tag=True):
    """The answer to a request. With the process's pidfd."""

    pid: int


class NotForked(msgspec.Struct, frozen=True, tag=True):
    """The answer to a request where the machine lacks what a process needs: ``code`` is the errno."""

    code: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """A forked process has ended. ``returncode``: its exit status, or the negated signal that killed it."""

    pid: int
    returncode: int


Message = ForkRequest | Serving | Forked | NotForked | Ended
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def send(link: socket.socket, message: Message, fds: tuple[int, ...] = ()) -> None:
    """Raises OSError if the other side is gone or does not read."""
    packets = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    link.sendmsg([msgspec.msgpack.encode(message)], packets)


def receive(link: socket.socket) -> tuple[Message, list[int]] | None:
    """The next message with its descriptors, which the caller owns; None when the other side is gone.

    Raises OSError, also TimeoutError.
    """
    try:
        data, fds, _, _ = socket.recv_fds(link, _MAX_NBYTES, _MAX_FDS)
    except ConnectionResetError:
        return None
    for fd in fds:
        os.set_inheritable(fd, False)
    return (_decoder.decode(data), fds) if data else None
