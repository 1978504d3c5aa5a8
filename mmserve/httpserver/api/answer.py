"""A response that lives as long as its client: sends a flight's answer, or lets the flight go when the client leaves.

Knows no protocol. Starlette's own streaming cancels its scope again and again on a disconnect and would cut
cleanup short; here a disconnect is noticed once, streaming or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mmserve.httpserver.request.task import RequestTask

Write = Callable[[RequestTask, Send], Awaitable[None]]


class Answer(Response):
    """``write`` sends the whole response; an MmserveError that it raises before sending becomes an error status."""

    def __init__(self, flight: RequestTask, write: Write) -> None:
        super().__init__()
        self._flight = flight
        self._write = write

    def __del__(self) -> None:
        """Dropped without ever being sent: nobody will read the answer."""
        self._flight.leave()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.ensure_future(self._write(self._flight, send))
        leaving = asyncio.ensure_future(_client_left(receive))
        try:
            await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
            if writing.done():
                writing.result()
        finally:
            leaving.cancel()
            writing.cancel()
            self._flight.leave()


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def send_json(send: Send, body: bytes) -> None:
    """A whole JSON answer."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
