"""A port that several fronts of a machine share (SO_REUSEPORT), and how one of them leaves it. No Ray in it."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct

_BACKLOG = 2048
_SO_ATTACH_FILTER = 26
_HANDSHAKE_S = 0.8
"""For what had begun to connect before to be accepted. A client whose first packet was not heard sends it again after
1 s, then after 3 s (TCP)."""
_FLAGS_AT, _SYN, _SYN_ACK = 13, 0x02, 0x12
_LOAD_BYTE, _AND, _EQUAL, _RETURN = 0x30, 0x54, 0x15, 0x06
_WHOLE, _NOTHING = 0xFFFFFFFF, 0
_NO_NEW = (
    (_LOAD_BYTE, 0, 0, _FLAGS_AT),
    (_AND, 0, 0, _SYN_ACK),
    (_EQUAL, 0, 1, _SYN),
    (_RETURN, 0, 0, _NOTHING),
    (_RETURN, 0, 0, _WHOLE),
)
"""A socket filter (classic BPF) that drops the first packet of a connection: the kernel shows it the TCP header."""


def listening(host: str, port: int) -> socket.socket:
    """Raises OSError."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind((host, port))
    sock.listen(_BACKLOG)
    return sock


async def take_no_more(sock: socket.socket) -> None:
    """When it returns, whoever has connected here has been accepted, if the event loop accepts, and the socket may be
    closed: the kernel resets what waits there to be accepted, and gives none of it to the other sockets of the port.
    Who connects meanwhile is not heard, and comes to another one."""
    code = b"".join(struct.pack("=HBBI", *each) for each in _NO_NEW)
    held = ctypes.create_string_buffer(code)
    program = struct.pack("@HP", len(_NO_NEW), ctypes.addressof(held))
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    await asyncio.sleep(_HANDSHAKE_S)
