"""Reads a request body up to a limit, into memory that is reserved first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import ClientDisconnect, Request

from mmserve.httpserver.http.disconnect import until_disconnect
from mmserve.httpserver.request.resources import RequestResources
from mmserve.runtime.errors import InvalidRequest, TooLarge, TooSlow

DIRECT_BODY = "mmserve.direct_body"
"""An ASGI extension: {"receive": function(prefix, nbytes)}, which receives a body of known length into its final place.

ASGI's own ``receive()`` copies the body five times between socket and application, in steps of 256 KiB. For a large
image that is more work than everything else the worker does with it.
"""
_DIRECT_MIN_NBYTES = 128 * 1024
"""A shorter rest of a body arrives with the next message or two."""
_GRACE_S = 30.0
_MIN_RATE = 64 * 1024
"""Bytes a second. A slower client is refused: it would keep memory that other requests wait for."""


async def read_body(
    request: Request, limit_nbytes: int, resources: RequestResources | None = None
) -> bytes | bytearray:
    """Read the whole body.

    With ``resources``, memory is reserved before the body is read, and shrunk to its length afterwards. A body without
    Content-Length first gets memory for a short one, and for ``limit_nbytes`` once it is longer than that. Without
    ``resources`` nothing is reserved, which suits limits of a few KiB.

    Raises TooLarge as soon as the limit is known to be exceeded, TooSlow if the client sends too slowly, InvalidRequest
    for a malformed length, ClientDisconnect, and what ``RequestResources.reserve_body`` raises.
    """
    declared_nbytes = _declared_nbytes(request)
    _check_limit(declared_nbytes or 0, limit_nbytes)
    reserved_nbytes = declared_nbytes
    if reserved_nbytes is None:
        reserved_nbytes = limit_nbytes if resources is None else min(limit_nbytes, resources.short_nbytes)
    body = _Body(request, limit_nbytes, declared_nbytes)
    while not body.complete:
        if resources is not None:
            await resources.reserve_body(reserved_nbytes, until_disconnect(request))
        await body.read(reserved_nbytes)
        reserved_nbytes = limit_nbytes
    if resources is not None:
        resources.shrink(body.nbytes)
    return body.joined()


def _declared_nbytes(request: Request) -> int | None:
    declared = request.headers.get("content-length")
    if declared is not None and not declared.isdecimal():
        raise InvalidRequest("malformed Content-Length")
    return None if declared is None else int(declared)


class _Body:
    """The part of a body that has arrived."""

    def __init__(self, request: Request, limit_nbytes: int, declared_nbytes: int | None) -> None:
        self.nbytes = 0
        self.complete = False
        self._request = request
        self._limit_nbytes = limit_nbytes
        self._declared_nbytes = declared_nbytes
        self._chunks: list[bytes | bytearray] = []

    async def read(self, reserved_nbytes: int) -> None:
        """Read until the body is complete, or longer than ``reserved_nbytes``."""
        try:
            async with asyncio.timeout(_GRACE_S + reserved_nbytes / _MIN_RATE):
                while not self.complete and self.nbytes <= reserved_nbytes:
                    await self._read_message()
        except TimeoutError:
            raise TooSlow(f"the request body of up to {reserved_nbytes} bytes did not arrive in time") from None

    async def _read_message(self) -> None:
        """Read one ASGI message, and then a long rest of known length by the DIRECT_BODY extension."""
        message = await self._request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        self._chunks.append(message.get("body", b""))
        self.nbytes += len(self._chunks[-1])
        self.complete = not message.get("more_body", False)
        _check_limit(self.nbytes, self._limit_nbytes)
        missing_nbytes = 0 if self._declared_nbytes is None else self._declared_nbytes - self.nbytes
        if missing_nbytes >= _DIRECT_MIN_NBYTES and (receive := _direct_receive(self._request)):
            self._chunks = [await receive(self.joined(), self.nbytes + missing_nbytes)]
            self.nbytes, self.complete = self.nbytes + missing_nbytes, True

    def joined(self) -> bytes | bytearray:
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)


def _direct_receive(request: Request) -> Callable[[bytes | bytearray, int], Awaitable[bytearray]] | None:
    extension = request.scope.get("extensions", {}).get(DIRECT_BODY)
    return extension and extension["receive"]  # type: ignore[no-any-return]


def _check_limit(nbytes: int, limit_nbytes: int) -> None:
    if nbytes > limit_nbytes:
        raise TooLarge(f"the request body is larger than {limit_nbytes} bytes (--max-body-mb)")
