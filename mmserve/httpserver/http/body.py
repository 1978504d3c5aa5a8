"""Reads a request body up to a limit, into memory that is reserved first."""

from __future__ import annotations

import asyncio

from starlette.requests import ClientDisconnect, Request

from mmserve.httpserver.http.body_receiver import OnProgress
from mmserve.httpserver.http.disconnect import until_disconnect
from mmserve.httpserver.request.resources import RequestResources
from mmserve.runtime.errors import InvalidRequest, TooLarge, TooSlow

DIRECT_BODY = "mmserve.direct_body"
"""An ASGI extension: {"arrived": function(), "receive": function(prefix, nbytes, on_progress), "stall_s": seconds}.

``arrived`` takes a body that has arrived completely, as most short ones have by the time that they are read; otherwise
it returns None. ``receive`` receives a body of known length into its final place, and calls ``on_progress`` with the
bytes received so far. ``stall_s``: how long a body of any length may make no progress.

ASGI's own ``receive()`` copies the body five times between socket and application, in steps of 256 KiB. For a large
image that is more work than everything else the worker does with it.
"""
_DIRECT_MIN_NBYTES = 128 * 1024
"""A shorter rest of a body arrives with the next message or two."""
_LONG_NBYTES = 4 << 20
_STALL_S = 60.0
"""Where no connection says it."""
PROGRESS_NBYTES = 64 * 1024
"""Fewer bytes are no progress: a client that sends byte by byte would keep memory that other requests wait for."""


async def read_body(
    request: Request, limit_nbytes: int, resources: RequestResources | None = None
) -> bytes | bytearray:
    """Read the whole body.

    With ``resources``, memory is reserved before the body is read, and shrunk to its length afterwards. A body without
    Content-Length first gets memory for a short one, and for ``limit_nbytes`` once it is longer than that. Without
    ``resources`` nothing is reserved, which suits limits of a few KiB.

    Raises TooLarge as soon as the limit is known to be exceeded, TooSlow if the body makes no progress, InvalidRequest
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
            await resources.reserve_body(reserved_nbytes, lambda: until_disconnect(request))
        await body.read(reserved_nbytes)
        reserved_nbytes = limit_nbytes
    if resources is not None:
        resources.shrink(body.nbytes)
    return await body.whole()


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
        self._direct = request.scope.get("extensions", {}).get(DIRECT_BODY, {})
        self._chunks: list[bytes | bytearray] = []

    async def read(self, reserved_nbytes: int) -> None:
        """Read until the body is complete, or longer than ``reserved_nbytes``."""
        if (arrived := self._direct.get("arrived", _nothing)()) is not None:
            return self._add(arrived, more=False)
        stall_s = self._direct.get("stall_s", _STALL_S)
        try:
            async with asyncio.timeout(stall_s) as deadline:
                on_progress = _Progress(deadline, stall_s, self.nbytes)
                while not self.complete and self.nbytes <= reserved_nbytes:
                    await self._read_message(on_progress)
        except TimeoutError:
            raise TooSlow(f"no {PROGRESS_NBYTES} bytes of the body arrived in {stall_s:g} s (--body-timeout)") from None

    async def _read_message(self, on_progress: OnProgress) -> None:
        """Read one ASGI message, and then a long rest of known length by the DIRECT_BODY extension."""
        message = await self._request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        self._add(message.get("body", b""), more=message.get("more_body", False))
        on_progress(self.nbytes)
        missing_nbytes = 0 if self._declared_nbytes is None else self._declared_nbytes - self.nbytes
        if missing_nbytes >= _DIRECT_MIN_NBYTES and (receive := self._direct.get("receive")):
            self._chunks = [await receive(self.joined(), self.nbytes + missing_nbytes, on_progress)]
            self.nbytes, self.complete = self.nbytes + missing_nbytes, True

    def _add(self, chunk: bytes | bytearray, *, more: bool) -> None:
        self._chunks.append(chunk)
        self.nbytes += len(chunk)
        self.complete = not more
        _check_limit(self.nbytes, self._limit_nbytes)

    async def whole(self) -> bytes | bytearray:
        """The body in one piece. Copying a long one takes tens of milliseconds, without the interpreter's lock."""
        if len(self._chunks) == 1 or self.nbytes < _LONG_NBYTES:
            return self.joined()
        return await asyncio.to_thread(b"".join, self._chunks)

    def joined(self) -> bytes | bytearray:
        return self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)


def _nothing() -> None:
    """Where no connection tells what has arrived."""


class _Progress:
    """Moves ``deadline`` to ``stall_s`` from now whenever PROGRESS_NBYTES more have arrived."""

    def __init__(self, deadline: asyncio.Timeout, stall_s: float, nbytes: int) -> None:
        self._deadline = deadline
        self._stall_s = stall_s
        self._seen_nbytes = nbytes

    def __call__(self, nbytes: int) -> None:
        if nbytes >= self._seen_nbytes + PROGRESS_NBYTES and not self._deadline.expired():
            self._seen_nbytes = nbytes
            self._deadline.reschedule(asyncio.get_running_loop().time() + self._stall_s)


def _check_limit(nbytes: int, limit_nbytes: int) -> None:
    if nbytes > limit_nbytes:
        raise TooLarge(f"the request body is larger than {limit_nbytes} bytes (--max-body-mb)")
