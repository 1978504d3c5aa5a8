"""What a request needs, from its body: names of its pictures and of the beginnings of its text.

A picture's name is a hash of its bytes and of the request's ``cache_salt`` (``content``); of one that the replica
fetches, of its URL. Names are equal in all fronts that share the secret. The replica is told them with the request and
reports them as held. Text is named by hashes of its first 512 bytes, its first 1,024, and so on, as it stands in the
JSON, with names in place of pictures: a conversation's next request begins with the same bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from mmserve.cluster.front.content import ContentNamer
from mmserve.cluster.scale.policy import Want
from mmserve.httpserver.media.split_media import MARK, split_media

_BLOCK_NBYTES = 512
_MAX_BLOCKS = 128
_NBYTES_A_TOKEN = 4
_MIN_PICTURE_NCHARS = 80
"""Of base64 text. No file of a picture is smaller."""
_URL = re.compile(rb'"(?:url|image_url)"\s*:\s*"((?:https?|file):(?:[^"\\]|\\.)*)"')
"""A picture that the replica fetches."""
_SALT = re.compile(rb'"cache_salt"\s*:\s*"((?:[^"\\]|\\.)*)"')
_START = re.compile(rb'"(?:messages|system|tools|prompt|input|instructions)"\s*:')
_MAX_PICTURES = 256
_LOOKED_THROUGH_NBYTES = 1 << 20
"""Of a body without its long pictures. More would hold up the event loop."""


class Namer:
    """Names what requests need. ``secret``: of the front and its replicas. Nobody else can tell what a name is of."""

    def __init__(self, secret: bytes) -> None:
        self._contents = ContentNamer(int.from_bytes(hashlib.sha256(b"names" + secret).digest()[:8], "big"))

    async def want(self, body: bytes | bytearray) -> Want:
        """Of a request with this body. What cannot be found in it, as in no JSON, is not named."""
        rest, urls = split_media(body, min_nbytes=_MIN_PICTURE_NCHARS)
        num_tokens = len(rest) // _NBYTES_A_TOKEN
        text = bytes(rest[:_LOOKED_THROUGH_NBYTES])
        salt = found[1] if (found := _SALT.search(text)) else b""
        marks = [*urls][:_MAX_PICTURES]
        named = await self._contents.names(salt, [urls[mark].data for mark in marks])
        names = dict(zip(marks, named, strict=True))
        fetched = [self._contents.name(salt, each[1].replace(b"\\/", b"/")) for each in _URL.finditer(text)]
        pictures = tuple(dict.fromkeys([*named, *fetched]))[:_MAX_PICTURES]
        blocks = self._blocks(_until_unnamed(_with_names(text, names)), salt)
        return Want(pictures, blocks, num_tokens, _BLOCK_NBYTES // _NBYTES_A_TOKEN)

    def _blocks(self, text: bytes, salt: bytes) -> tuple[int, ...]:
        start = found.start() if (found := _START.search(text)) else 0
        digest = self._contents.digest(salt)
        blocks = []
        end = min(len(text) - _BLOCK_NBYTES + 1, start + _MAX_BLOCKS * _BLOCK_NBYTES)
        for at in range(start, end, _BLOCK_NBYTES):
            digest.update(text[at : at + _BLOCK_NBYTES])
            blocks.append(digest.intdigest())
        return tuple(blocks)


def _with_names(text: bytes, names: Mapping[str, int]) -> bytes:
    return MARK.sub(lambda mark: b"%016x" % names[mark[0].decode()] if mark[0].decode() in names else mark[0], text)


def _until_unnamed(text: bytes) -> bytes:
    """What follows a picture without a name would have the same name after any other picture."""
    return text[: found.start()] if (found := MARK.search(text)) else text
