"""Reads a request body up to a limit. Knows nothing of its meaning."""

from __future__ import annotations

from starlette.requests import Request

from mmserve.errors import InvalidRequest, TooLarge


async def read_body(request: Request, limit_nbytes: int) -> bytes:
    """The whole body. Raises TooLarge as soon as the limit is known to be passed, InvalidRequest for a bad length."""
    declared = request.headers.get("content-length")
    if declared is not None:
        if not declared.isdecimal():
            raise InvalidRequest("malformed Content-Length")
        _check(int(declared), limit_nbytes)
    chunks, nbytes = [], 0
    async for chunk in request.stream():
        nbytes += len(chunk)
        _check(nbytes, limit_nbytes)
        chunks.append(chunk)
    return b"".join(chunks)


def _check(nbytes: int, limit_nbytes: int) -> None:
    if nbytes > limit_nbytes:
        raise TooLarge(f"the request body is larger than {limit_nbytes} bytes (--max-body-mb)")
