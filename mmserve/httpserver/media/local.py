"""Images that need no network: ``data:`` URLs, and ``file:`` URLs below one allowed directory. Blocking.

Messages repeat neither the URL's data nor any path, and do not tell a missing file from a forbidden one.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import msgspec
import pybase64

from mmserve.httpserver.call import GenerateCall, MediaRef
from mmserve.httpserver.limits.media_budgets import RequestByteLimit
from mmserve.runtime.errors import MediaError

_LITTLE_NBYTES = 1 << 20
_FORBIDDEN = "no such image file, or it is not below the allowed directory"


def with_small_ones_decoded(call: GenerateCall) -> GenerateCall:
    """``call``, without base64 text if that is little in all: decoding it (0.2 ms a MiB) then costs the event loop less
    than handing it to a thread, and the body can go before the request waits for anything."""
    if not 0 < sum(len(ref.data or b"") for ref in call.media) <= _LITTLE_NBYTES:
        return call
    return replace(call, media=tuple(_with_content(ref) for ref in call.media))


def _with_content(ref: MediaRef) -> MediaRef:
    if ref.data is None or not _is_base64(ref.url.removesuffix(",")):
        return ref
    with suppress(ValueError):
        return MediaRef(ref.url, ref.param, content=pybase64.b64decode(ref.data, validate=True))
    return ref  # escaped somewhere, or wrong: that takes longer to find out, in a thread


def read_data_url(ref: MediaRef, budget: RequestByteLimit) -> bytes:
    """The bytes of ``data:[type][;base64],...``; the media type is not looked at. Raises MediaError, TooLarge."""
    head, comma, text = ref.url.partition(",")
    if not comma:
        raise MediaError("the image's data: URL has no comma")
    if ref.content is not None:
        data = ref.content
    elif _is_base64(head):
        data = _decoded(text if ref.data is None else ref.data)
    else:
        data = unquote_to_bytes(text)
    budget.take(len(data))
    return data


def _is_base64(head: str) -> bool:
    return head.lower().endswith(";base64")


def _decoded(text: str | memoryview) -> bytes:
    """Without the GIL and at the speed of memory, as long as nothing in it is escaped as JSON and URLs may do it."""
    with suppress(ValueError):
        return pybase64.b64decode(text, validate=True)
    try:
        if not isinstance(text, str):
            text = msgspec.json.decode(b"".join((b'"', text, b'"')), type=str)
        return pybase64.b64decode(unquote(text), validate=True)
    except (ValueError, msgspec.DecodeError):
        raise MediaError("the image's data: URL is not valid base64") from None


def read_file_url(url: str, root: str | None, budget: RequestByteLimit) -> bytes:
    """The bytes of a regular file below ``root``, symlinks resolved. Raises MediaError, TooLarge."""
    if root is None:
        raise MediaError("file: URLs are not allowed on this server")
    path = _path(url)
    base = Path(root).resolve()
    try:
        # What is checked is the descriptor's own path, so nothing can be swapped between check and read.
        if not path.resolve(strict=True).is_relative_to(base):
            raise MediaError(_FORBIDDEN)
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            opened = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            status = os.fstat(descriptor)
            if not opened.is_relative_to(base) or not stat.S_ISREG(status.st_mode):
                raise MediaError(_FORBIDDEN)
            budget.take(status.st_size)
            return file.read(status.st_size)
    except (OSError, ValueError, RuntimeError):  # RuntimeError: Python 3.11's word for a loop of links
        raise MediaError(_FORBIDDEN) from None


def _path(url: str) -> Path:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise MediaError("the image's file: URL is not valid") from None
    text = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not text.startswith("/") or "\x00" in text:
        raise MediaError("the image's file: URL must be file:///absolute/path")
    return Path(text)
