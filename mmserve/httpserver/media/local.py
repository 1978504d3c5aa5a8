"""Images without network access: ``data:`` URLs, and ``file:`` URLs below one allowed directory. Blocking.

Error messages contain neither data of the URL nor a path, and are the same for a missing and a forbidden file.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

import msgspec
import pybase64
from msgspec.structs import replace

from mmserve.httpserver.call import GenerateCall, MediaRef
from mmserve.httpserver.limits.media_budgets import RequestByteLimit
from mmserve.runtime.errors import MediaError
from mmserve.runtime.shortage import shortage_of

_SMALL_NBYTES = 1 << 20
_FORBIDDEN = "no such image file, or it is not below the allowed directory"


def decode_small_images(call: GenerateCall) -> GenerateCall:
    """``call`` with its base64 images decoded, if their text is at most 1 MiB in total; else ``call`` itself.

    Decoding that much on the event loop (0.2 ms a MiB) costs less than a hand-over to a thread, and the request's body
    can be freed before the request waits for anything.
    """
    if not 0 < sum(len(ref.data or b"") for ref in call.media) <= _SMALL_NBYTES:
        return call
    return replace(call, media=tuple(_decode_ref(ref) for ref in call.media))


def _decode_ref(ref: MediaRef) -> MediaRef:
    if ref.data is None or not _is_base64(ref.url.removesuffix(",")):
        return ref
    with suppress(ValueError):
        content = pybase64.b64decode(ref.data, validate=True)
        return MediaRef(ref.url, ref.param, content=content, uuid=ref.uuid)
    return ref  # escaped or invalid: decoded, or refused, later in a thread


def read_data_url(ref: MediaRef, budget: RequestByteLimit) -> bytes:
    """The bytes of ``data:[type][;base64],...``; the media type is ignored. Raises MediaError, TooLarge."""
    head, comma, text = ref.url.partition(",")
    if not comma:
        raise MediaError("the image's data: URL has no comma")
    if ref.content is not None:
        data = ref.content
    elif _is_base64(head):
        data = decode_base64(text if ref.data is None else ref.data)
    else:
        data = unquote_to_bytes(text)
    budget.take(len(data))
    return data


def _is_base64(head: str) -> bool:
    return head.lower().endswith(";base64")


def decode_base64(text: str | memoryview) -> bytes:
    """Decodes plain base64 first, fast and without the GIL; only on failure are JSON and URL escapes resolved. Raises
    MediaError."""
    with suppress(ValueError):
        return pybase64.b64decode(text, validate=True)
    try:
        if not isinstance(text, str):
            text = msgspec.json.decode(b"".join((b'"', text, b'"')), type=str)
        return pybase64.b64decode(unquote(text), validate=True)
    except (ValueError, msgspec.DecodeError):
        raise MediaError("the image's data: URL is not valid base64") from None


def read_file_url(url: str, root: str | None, budget: RequestByteLimit) -> bytes:
    """The bytes of a regular file below ``root``. Symlinks may be used as long as the file itself is below ``root``.

    Raises MediaError, TooLarge, and Unavailable if this process cannot open files now.
    """
    if root is None:
        raise MediaError("file: URLs are not allowed on this server")
    path = _path(url)
    base = Path(root).resolve()
    try:
        # This check avoids opening files elsewhere. The check that decides is of the opened descriptor's own path,
        # because a symlink may be replaced between this check and the open.
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
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: a symlink loop, in Python 3.11
        raise (shortage_of(error) or MediaError(_FORBIDDEN)) from None


def _path(url: str) -> Path:
    try:
        parts = urlsplit(url)
    except ValueError:
        raise MediaError("the image's file: URL is not valid") from None
    text = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not text.startswith("/") or "\x00" in text:
        raise MediaError("the image's file: URL must be file:///absolute/path")
    return Path(text)
