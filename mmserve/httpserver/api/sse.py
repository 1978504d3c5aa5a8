"""Server-sent events on one ASGI connection. Knows no protocol on top."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.types import Send

DONE = b"data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


def event(payload: bytes) -> bytes:
    """One event; ``payload`` is JSON, so it has no newline."""
    return b"data: " + payload + b"\n\n"


async def send_events(send: Send, events: AsyncGenerator[bytes, None]) -> None:
    """Send events as they come. The status line waits for the first, so an error before it can be a real status."""
    started = False
    async with aclosing(events):
        async for data in events:
            if not started:
                await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                started = True
            await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
