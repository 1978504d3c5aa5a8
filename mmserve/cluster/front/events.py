"""Cuts a stream of server-sent events into whole events. Pure."""

from __future__ import annotations

_END = b"\n\n"
PING = b"event: ping\n"


class EventSplitter:
    """Bytes of an event whose end has not come are kept."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that are complete now, each with its empty line."""
        *events, self._rest = (self._rest + data).split(_END)
        return [event + _END for event in events]
