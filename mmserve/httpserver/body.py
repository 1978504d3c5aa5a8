"""Reads a request body up to a limit. Knows nothing of its meaning."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request

from mmserve.errors import InvalidRequest, TooLarge

DIRECT_BODY = "mmserve.direct_body"
"""An ASGI extension: {"receive": function(begun, nbytes)}, which receives a body without the copies of ``receive()``
(five between socket and application: in 256 KiB steps, but more work than everything else that is done to a picture).
"""
_DIRECT_MIN_NBYTES = 128 * 1024
"""Less is here with the next message or two."""


async def read_body(request: Request, limit_nbytes: int) -> bytes | bytearray:
    """The whole body. Raises TooLarge as soon as the limit is known to be passed, InvalidRequest for a bad length."""
    declared = request.headers.get("content-length")
    if declared is not None:
        if not declared.isdecimal():
            raise InvalidRequest("malformed Content-Length")
        _check(int(declared), limit_nbytes)
    chunks, nbytes, more = [], 0, True
    while more:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        chunks.append(message.get("body", b""))
        more = message.get("more_body", False)
        nbytes += len(chunks[-1])
        _check(nbytes, limit_nbytes)
        if declared is not None and int(declared) - nbytes >= _DIRECT_MIN_NBYTES and (receive := _direct(request)):
            return await receive(b"".join(chunks), int(declared))
    return b"".join(chunks)


def _direct(request: Request) -> Callable[[bytes, int], Awaitable[bytearray]] | None:
    extension = request.scope.get("extensions", {}).get(DIRECT_BODY)
    return extension and extension["receive"]  # type: ignore[no-any-return]


def _check(nbytes: int, limit_nbytes: int) -> None:
    if nbytes > limit_nbytes:
        raise TooLarge(f"the request body is larger than {limit_nbytes} bytes (--max-body-mb)")
