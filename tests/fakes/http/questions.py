"""An XPUB without a network: what was sent, and whether somebody asks."""

from __future__ import annotations

from typing import Any

import zmq


class AskedSocket:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.is_asked = False

    def as_socket(self) -> Any:
        """For who wants a ``zmq.Socket``."""
        return self

    def recv(self, flags: int) -> bytes:
        assert flags == zmq.NOBLOCK
        if not self.is_asked:
            raise zmq.Again
        self.is_asked = False
        return b"\x01snapshot"

    def send(self, data: bytes) -> None:
        self.sent.append(data)
