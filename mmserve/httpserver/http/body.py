"""Reads a request body up to a limit, in memory that is set aside for it. Knows nothing of its meaning."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request

from mmserve.httpserver.http.disconnect import connected
from mmserve.httpserver.request.resources import RequestResources
from mmserve.runtime.errors import InvalidRequest, TooLarge, TooSlow

DIRECT_BODY = "mmserve.direct_body"
"""An ASGI extension: {"receive": function(begun, nbytes)}, which receives a body without the copies of ``receive()``
(five between socket and application: in 256 KiB steps, but more work than everything else that is done to a picture).
"""
_DIRECT_MIN_NBYTES = 128 * 1024
"""Less is here with the next message or two."""
_GRACE_S = 30.0
_MIN_RATE = 64 * 1024
"""Bytes a second; whoever is slower holds memory that others wait for."""


async def read_body(request: Request, limit_nbytes: int, holdings: RequestResources | None = None) -> bytes | bytearray:
    """The whole body. Raises TooLarge as soon as the limit is known to be passed, TooSlow for a client that sends next
    to nothing, InvalidRequest for a bad length, ClientDisconnect, and what ``RequestResources.receive`` raises.

    ``holdings`` make room before it is read, and hold no more than its length afterwards; none are needed where the
    limit is a few KiB. A body that does not say its length has the room of a short one, until it turns out longer.
    """
    declared = _declared_nbytes(request)
    _check(declared or 0, limit_nbytes)
    room_nbytes = declared
    if room_nbytes is None:
        room_nbytes = limit_nbytes if holdings is None else min(limit_nbytes, holdings.short_nbytes)
    body = _Body(request, limit_nbytes, declared)
    while not body.complete:
        if holdings is not None:
            await holdings.receive(room_nbytes, connected(request))
        await body.read(room_nbytes)
        room_nbytes = limit_nbytes
    if holdings is not None:
        holdings.keep(body.nbytes)
    return body.whole()


def _declared_nbytes(request: Request) -> int | None:
    declared = request.headers.get("content-length")
    if declared is not None and not declared.isdecimal():
        raise InvalidRequest("malformed Content-Length")
    return None if declared is None else int(declared)


class _Body:
    """As much of it as has come."""

    def __init__(self, request: Request, limit_nbytes: int, declared_nbytes: int | None) -> None:
        self.nbytes = 0
        self.complete = False
        self._request = request
        self._limit_nbytes = limit_nbytes
        self._declared_nbytes = declared_nbytes
        self._chunks: list[bytes | bytearray] = []

    async def read(self, room_nbytes: int) -> None:
        """On to its end, or until more has come than there is room for."""
        try:
            async with asyncio.timeout(_GRACE_S + room_nbytes / _MIN_RATE):
                while not self.complete and self.nbytes <= room_nbytes:
                    await self._read_on()
        except TimeoutError:
            raise TooSlow(f"the request body of up to {room_nbytes} bytes did not arrive in time") from None

    async def _read_on(self) -> None:
        message = await self._request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        self._chunks.append(message.get("body", b""))
        self.nbytes += len(self._chunks[-1])
        self.complete = not message.get("more_body", False)
        _check(self.nbytes, self._limit_nbytes)
        missing = 0 if self._declared_nbytes is None else self._declared_nbytes - self.nbytes
        if missing >= _DIRECT_MIN_NBYTES and (receive := _direct(self._request)):
            self._chunks = [await receive(self.whole(), self.nbytes + missing)]
            self.nbytes, self.complete = self.nbytes + missing, True

    def whole(self) -> bytes | bytearray:
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)


def _direct(request: Request) -> Callable[[bytes | bytearray, int], Awaitable[bytearray]] | None:
    extension = request.scope.get("extensions", {}).get(DIRECT_BODY)
    return extension and extension["receive"]  # type: ignore[no-any-return]


def _check(nbytes: int, limit_nbytes: int) -> None:
    if nbytes > limit_nbytes:
        raise TooLarge(f"the request body is larger than {limit_nbytes} bytes (--max-body-mb)")
