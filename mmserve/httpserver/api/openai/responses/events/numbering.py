"""Events as they are sent: with their numbers, in parts of moderate size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from mmserve.httpserver.api.openai.responses.events.writer import Event
from mmserve.httpserver.api.response import PART_NBYTES


class Numbering:
    """Gives events their numbers, from 0 without gaps. Those up to number ``after`` are left out."""

    def __init__(self, after: int = -1) -> None:
        self._next = 0
        self._after = after

    def sse(self, event: Event) -> bytes:
        """The event as a server-sent one; empty if it is left out."""
        number, self._next = self._next, self._next + 1
        if number <= self._after:
            return b""
        return numbered(event, number)


def numbered(event: Event, number: int) -> bytes:
    """As a server-sent event."""
    fields: dict[str, Any] = {"type": event.type, "sequence_number": number} | event.fields
    return b"event: %s\ndata: %s\n\n" % (event.type.encode(), msgspec.json.encode(fields))


def parts_of(data: bytes) -> Iterator[bytes]:
    """The last events have the whole answer, so they are sent in parts: each waits until the client has read."""
    for at in range(0, len(data), PART_NBYTES):
        yield data[at : at + PART_NBYTES]
