"""Replaces long base64 data: URLs in a JSON body by short marks, so that the JSON parser reads only the rest.

The URLs are found with ``bytes.find``; their base64 text is neither copied nor decoded here.

Why this is exact: in valid JSON, the bytes ``"data:`` without a backslash before them can only start a string, and the
string ends at the next quote without a backslash before it. So the parser is in the same state after the mark as after
the string, and a mark that is a value of the parsed body replaced a whole string. Characters that JSON forbids inside a
string are not base64 either, so decoding finds them. The caller must check that every mark came out in a field that may
hold an image, and otherwise parse the original body.
"""

from __future__ import annotations

import itertools
import re
import secrets
from typing import NamedTuple

_MIN_NBYTES = 16 * 1024
"""For a shorter URL, parsing the JSON string costs less than the search."""
_MAX_STARTS = 1024
"""Candidates examined in one body; bounds the time on the event loop for a text full of ``"data:``."""
_QUOTE, _BACKSLASH = b'"', b"\\"
_START = b'"data:'
_HEAD = re.compile(rb"data:[!#-+\--\[\]-~]{0,100};base64,", re.IGNORECASE)
"""The media type is printable ASCII without quote, comma and backslash."""

_SECRET, _NUMBERS = secrets.token_hex(16), itertools.count()
"""Marks never leave the process, so no client can write one into its request."""


class SplitUrl(NamedTuple):
    """One data: URL: ``head`` ends with the comma; ``data`` is the base64 text in the body, JSON escapes included."""

    head: str
    data: memoryview


def split_media(body: bytes | bytearray) -> tuple[bytes | bytearray, dict[str, SplitUrl]]:
    """The body with marks, and the URL of each mark. Returns ``body`` itself if it has no long data: URL."""
    view = memoryview(body)
    pieces: list[bytes | memoryview] = []
    urls: dict[str, SplitUrl] = {}
    copied, at = 0, body.find(_START)
    for _ in range(_MAX_STARTS):
        if at < 0:
            break
        head = _HEAD.match(body, at + 1)
        end = -1 if head is None else body.find(_QUOTE, head.end())
        if head is not None and end - at >= _MIN_NBYTES and not (_escaped(body, at) or _escaped(body, end)):
            mark = f"{_SECRET}-{next(_NUMBERS)}"
            urls[mark] = SplitUrl(head[0].decode(), view[head.end() : end])
            pieces += view[copied : at + 1], mark.encode()
            copied = at = end
        at = body.find(_START, at + 1)
    return (b"".join([*pieces, view[copied:]]) if urls else body), urls


def _escaped(body: bytes | bytearray, at: int) -> bool:
    return body[max(0, at - 1) : at] == _BACKSLASH
