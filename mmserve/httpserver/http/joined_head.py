"""Sends the head of a response together with the first part of its body: one system call in place of two."""

from __future__ import annotations

import asyncio

_INTERIM = b"HTTP/1.1 100"
"""The start of "100 Continue", which has no body."""


class JoinedHead:
    """What uvicorn uses of the transport, for one response that has a body, if perhaps an empty one."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        """Not sent yet."""
        self._started = False

    def write(self, data: bytes) -> None:
        if self._started or data.startswith(_INTERIM):
            self._transport.write(self._head + data)
            self._head = b""
        else:
            self._head, self._started = data, True

    def close(self) -> None:
        if self._head:
            self._transport.write(self._head)
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()
