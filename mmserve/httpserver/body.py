"""Reads a request body up to a limit. Knows nothing of its meaning."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request

from mmserve.errors import InvalidRequest, TooLarge, TooSlow

DIRECT_BODY = "mmserve.direct_body"
"""An ASGI extension: {"receive": function(begun, nbytes)}, which receives a body without the copies of ``receive()``
(five between socket and application: in 256 KiB steps, but more work than everything else that is done to a picture).
"""
_DIRECT_MIN_NBYTES = 128 * 1024
"""Less is here with the next message or two."""
_GRACE_S = 30.0
_MIN_RATE = 64 * 1024
"""Bytes a second; whoever is slower holds memory that others wait for."""


def expected_nbytes(request: Request, limit_nbytes: int) -> int:
    """At most so long will its body be. Raises TooLarge, and InvalidRequest for a bad length."""
    declared = request.headers.get("content-length")
    if declared is None:
        return limit_nbytes
    if not declared.isdecimal():
        raise InvalidRequest("malformed Content-Length")
    _check(int(declared), limit_nbytes)
    return int(declared)


async def read_body(request: Request, limit_nbytes: int) -> bytes | bytearray:
    """The whole body, of ``expected_nbytes`` at most. Raises TooLarge as soon as the limit is known to be passed, and
    TooSlow for a client that sends next to nothing."""
    expected = expected_nbytes(request, limit_nbytes)
    try:
        async with asyncio.timeout(_GRACE_S + expected / _MIN_RATE):
            return await _read(request, expected, limit_nbytes)
    except TimeoutError:
        raise TooSlow(f"the request body of up to {expected} bytes did not arrive in time") from None


async def _read(request: Request, expected: int, limit_nbytes: int) -> bytes | bytearray:
    declared = "content-length" in request.headers
    chunks, nbytes, more = [], 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
        nbytes += len(chunks[-1])
        _check(nbytes, limit_nbytes)
        if declared and expected - nbytes >= _DIRECT_MIN_NBYTES and (receive := _direct(request)):
            return await receive(b"".join(chunks), expected)
    return b"".join(chunks)


def _direct(request: Request) -> Callable[[bytes, int], Awaitable[bytearray]] | None:
    extension = request.scope.get("extensions", {}).get(DIRECT_BODY)
    return extension and extension["receive"]  # type: ignore[no-any-return]


def _check(nbytes: int, limit_nbytes: int) -> None:
    if nbytes > limit_nbytes:
        raise TooLarge(f"the request body is larger than {limit_nbytes} bytes (--max-body-mb)")
