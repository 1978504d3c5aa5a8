"""Replaces long base64 images in a JSON body by short marks, so that the JSON parser reads only the rest.

Two forms are cut: strings that are base64 data: URLs (OpenAI), and base64 strings that are the value of a key ``data``
(Anthropic). They are found with ``bytes.find``; their base64 text is neither copied nor decoded here.

Why this is exact: in valid JSON, the bytes ``"data`` without a backslash before them can only start a string. If a
colon follows, they are its beginning. If a quote follows, they are all of it, and if then a colon and a quote follow,
it is a key and the second quote starts its value. The string ends at the next quote without a backslash before it. So
the parser is in the same state after the mark as after the string, and a mark that is a value of the parsed body
replaced a whole string. Characters that JSON forbids inside a string are not base64 either, so decoding finds them. The
caller must check that every mark came out in a field that may hold an image, and otherwise parse the body again with
the others put back.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Mapping
from typing import NamedTuple

from mmserve.runtime.errors import InvalidRequest

_MIN_NBYTES = 16 * 1024
"""For a shorter URL, parsing the JSON string costs less than the search."""
_MAX_STARTS = 1024
"""Candidates examined in one body; bounds the time on the event loop for a text full of ``"data``."""
_WINDOW_NBYTES = 256 * 1024
"""Text that is searched at a time, which takes up to 1 ms."""
_SHORT_NBYTES = 4096
_QUOTE, _BACKSLASH, _COLON = b'"', b"\\", ord(":")
_START = b'"data'
_HEAD = re.compile(
    # The media type is printable ASCII without quote and comma, and without backslash but for an escaped slash.
    rb"""data:(?:[!#-+\--\[\]-~]|\\/){0,100};base64,"""
    rb"""|data"[ \t\n\r]{0,100}:[ \t\n\r]{0,100}"(?=[0-9A-Za-z+/=\\]{64})""",
    re.IGNORECASE,
)
"""From behind the first quote to the base64 text. In the second form, the beginning of the value must be base64."""

_SECRET, _NUMBERS = secrets.token_hex(16), itertools.count()
"""Marks never leave the process, so no client can write one into its request."""
MARK = re.compile(_SECRET.encode() + rb"-\d+")
_BASE64 = re.compile(rb"[0-9A-Za-z+/=]{0,%d}" % _SHORT_NBYTES)


class SplitUrl(NamedTuple):
    """A data: URL, whose ``head`` ends with the comma, or base64 text without a head. ``data``: the base64 text in the
    body, JSON escapes included."""

    head: str
    data: memoryview


def split_media(
    body: bytes | bytearray, max_nbytes: int | None = None, *, min_nbytes: int | None = None
) -> tuple[bytes | bytearray, dict[str, SplitUrl]]:
    """The body with marks, and the URL of each mark. Returns ``body`` itself if none has ``min_nbytes``.

    Raises TooMuchText if more than ``max_nbytes`` are left without the URLs; it searches no further than that.
    """
    view = memoryview(body)
    pieces: list[bytes | memoryview] = []
    urls: dict[str, SplitUrl] = {}
    limit = len(body) if max_nbytes is None else max_nbytes
    min_nbytes = _MIN_NBYTES if min_nbytes is None else min_nbytes
    copied, cut_nbytes, at = 0, 0, _find_start(body, 0, limit)
    for _ in range(_MAX_STARTS):
        if at < 0:
            break
        head = _HEAD.match(body, at + 1)
        end = -1 if head is None else body.find(_QUOTE, head.end())
        if head is not None and end - at >= min_nbytes and not (_escaped(body, at) or _escaped(body, end)):
            mark = f"{_SECRET}-{next(_NUMBERS)}"
            is_url = body[at + len(_START)] == _COLON
            start = at + 1 if is_url else head.end()
            urls[mark] = SplitUrl(head[0].decode().replace("\\/", "/") if is_url else "", view[head.end() : end])
            pieces += view[copied:start], mark.encode()
            cut_nbytes += end - start
            copied = at = end
        at = _find_start(body, at + 1, limit + cut_nbytes)
    if len(body) - cut_nbytes > limit:
        raise TooMuchText(len(body) - cut_nbytes)
    return (b"".join([*pieces, view[copied:]]) if urls else body), urls


class TooMuchText(Exception):
    """What is left of a body without its long data: URLs is too long."""


class UrlsLeft(InvalidRequest):
    """Some data: URLs that were cut out of the body are not in the place of images. ``urls``: those, by their marks."""

    def __init__(self, urls: Mapping[str, SplitUrl]) -> None:
        super().__init__("an image is in a place where none may be")
        self.urls = urls


def put_back(rest: bytes | bytearray, urls: Mapping[str, SplitUrl], *, shortened: bool = False) -> bytes:
    """``rest`` with these URLs in the place of their marks. ``shortened``: only their first few thousand bytes."""

    def whole(mark: re.Match[bytes]) -> bytes:
        url = urls.get(mark[0].decode())
        if url is None:
            return mark[0]
        return url.head.encode() + (_shortened(url.data) if shortened else bytes(url.data))

    return MARK.sub(whole, rest)


def _shortened(data: memoryview) -> bytes:
    if len(data) <= _SHORT_NBYTES:
        return bytes(data)
    plain = _BASE64.match(data)  # does not end within an escape or a character
    return (plain[0] if plain else b"").ljust(_SHORT_NBYTES, b"A")


def _find_start(body: bytes | bytearray, at: int, end: int) -> int:
    """Place of the next candidate from ``at`` on, or -1. Stops soon after ``end``."""
    while at <= min(end, len(body)):
        found = body.find(_START, at, at + _WINDOW_NBYTES + len(_START) - 1)
        if found >= 0:
            return found
        at += _WINDOW_NBYTES
    return -1


def _escaped(body: bytes | bytearray, at: int) -> bool:
    return body[max(0, at - 1) : at] == _BACKSLASH
