"""What a request needs, from its body: names of its pictures and of the beginnings of its text.

A picture's name is a hash of its bytes and of the request's ``cache_salt`` (``content``); of one that the replica
fetches, of its URL. Names are equal in all fronts that share the secret. The replica is told them with the request, and
reports them while it holds what they are of. Text is named by hashes of its first 512 bytes, its first 1,024, and so
on, as it stands in the JSON, with names in place of pictures: a conversation's next request begins with the same bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from mmserve.cluster.front.request.content import ContentNamer
from mmserve.cluster.scale.policy import Want
from mmserve.httpserver.media.split_media import MARK, split_media
from mmserve.messages.relay import BEGINNING_NBYTES, NAME_NBYTES

_MAX_BLOCKS = 128
_NBYTES_A_TOKEN = 4
_MIN_PICTURE_NCHARS = 80
"""Of base64 text. No file of a picture is smaller."""
_URL = re.compile(rb'"(?:url|image_url)"\s*:\s*"((?:https?|file):(?:[^"\\]|\\.)*)"')
"""A picture that the replica fetches."""
_SALT = re.compile(rb'"cache_salt"\s*:\s*"((?:[^"\\]|\\.)*)"')
_BACKGROUND = re.compile(rb'"background"\s*:\s*true')
_START = re.compile(rb'"(?:messages|system|tools|prompt|input|instructions)"\s*:')
_MAX_PICTURES = 256
_LOOKED_THROUGH_NBYTES = 1 << 20
"""Of a body without its long pictures. More would hold up the event loop."""


class Namer:
    """Names what requests need. ``secret``: of the front and its replicas. Nobody else can tell what a name is of."""

    def __init__(self, secret: bytes) -> None:
        self._contents = ContentNamer(int.from_bytes(hashlib.sha256(b"names" + secret).digest()[:8], "big"))

    async def want(self, body: bytes | bytearray, tenant: bytes = b"") -> Want:
        """Of a request with this body. What cannot be found in it, as in no JSON, is not named. ``tenant``: whose names
        they are; names of all others are other ones."""
        rest, urls = split_media(body, min_nbytes=_MIN_PICTURE_NCHARS)
        text = bytes(rest[:_LOOKED_THROUGH_NBYTES])
        in_background = len(rest) > _LOOKED_THROUGH_NBYTES or _BACKGROUND.search(text) is not None
        salt = found[1] if (found := _SALT.search(text)) else b""
        if tenant:
            salt = hashlib.sha256(tenant).digest() + salt
        marks = [*urls][:_MAX_PICTURES]
        named = await self._contents.names(salt, [urls[mark].data for mark in marks])
        text, places = _with_names(text, dict(zip(marks, named, strict=True)))
        for each in _URL.finditer(text):
            places.append((self._contents.name(salt, each[1].replace(b"\\/", b"/")), each.start()))
        places.sort(key=lambda place: place[1])
        start = found.start() if (found := _START.search(text)) else 0
        return Want(
            tuple(dict.fromkeys(name for name, _ in places))[:_MAX_PICTURES],
            self._blocks(text, start, salt),
            len(rest) // _NBYTES_A_TOKEN,
            BEGINNING_NBYTES // _NBYTES_A_TOKEN,
            tuple((name, max(0, at - start)) for name, at in places)[:_MAX_PICTURES],
            len(rest) - start - sum(len(mark) - NAME_NBYTES for mark in marks),
            in_background,
        )

    def _blocks(self, text: bytes, start: int, salt: bytes) -> tuple[int, ...]:
        digest = self._contents.digest(salt)
        blocks = []
        end = min(len(text) - BEGINNING_NBYTES + 1, start + _MAX_BLOCKS * BEGINNING_NBYTES)
        for at in range(start, end, BEGINNING_NBYTES):
            digest.update(text[at : at + BEGINNING_NBYTES])
            blocks.append(digest.intdigest())
        return tuple(blocks)


def _with_names(text: bytes, names: Mapping[str, int]) -> tuple[bytes, list[tuple[int, int]]]:
    """The text with names in place of pictures, and where each stands. It ends before a picture without a name: what
    follows that would have the same name after any other picture."""
    named, places, after = bytearray(), list[tuple[int, int]](), 0
    for mark in MARK.finditer(text):
        named += text[after : mark.start()]
        if (name := names.get(mark[0].decode())) is None:
            return bytes(named), places
        places.append((name, len(named)))
        named += b"%0*x" % (NAME_NBYTES, name)
        after = mark.end()
    return bytes(named + text[after:]), places
