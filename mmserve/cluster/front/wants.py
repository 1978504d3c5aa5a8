"""What a request needs, from its body: names of its pictures and of the beginnings of its text. Pure.

A picture's name is a hash of its base64 text, which is neither decoded nor parsed. The replica is told the names and
reports them as held, so they need not be content keys; they are equal in all fronts that share the secret. Text is
named by hashes of its first 512 bytes, its first 1,024, and so on, as it stands in the JSON, with names in place of
pictures: a conversation's next request begins with the same bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import xxhash

from mmserve.cluster.scale.policy import Want
from mmserve.httpserver.media.split_media import SplitUrl, split_media

_BLOCK_NBYTES = 512
_MAX_BLOCKS = 128
_NBYTES_A_TOKEN = 4
_SHORT_URL = re.compile(rb'"url"\s*:\s*"((?:https?|data|file):[^"\\]*)"')
"""A picture that is fetched, or too short to be cut out of the body."""
_SALT = re.compile(rb'"cache_salt"\s*:\s*"((?:[^"\\]|\\.)*)"')
_START = re.compile(rb'"(?:messages|system|tools|prompt|input|instructions)"\s*:')
_MAX_PICTURES = 256
_LOOKED_THROUGH_NBYTES = 1 << 20
"""Of a body without its long pictures. More would hold up the event loop."""


class Namer:
    """Names what requests need. ``secret``: of the front and its replicas. Nobody else can tell what a name is of."""

    def __init__(self, secret: bytes) -> None:
        self._seed = int.from_bytes(hashlib.sha256(b"names" + secret).digest()[:8], "big")

    def want(self, body: bytes | bytearray) -> Want:
        """Of a request with this body. What cannot be found in it, as in no JSON, is not named."""
        rest, urls = split_media(body)
        num_tokens = len(rest) // _NBYTES_A_TOKEN
        rest = bytes(rest[:_LOOKED_THROUGH_NBYTES])
        salt = found[1] if (found := _SALT.search(rest)) else b""
        names = self._of_urls(urls, salt)
        text = _without_marks(rest, names)
        short = [self._name(salt, each[1]) for each in _SHORT_URL.finditer(text)]
        pictures = tuple(dict.fromkeys([*names.values(), *short]))[:_MAX_PICTURES]
        return Want(pictures, self._blocks(text, salt), num_tokens, _BLOCK_NBYTES // _NBYTES_A_TOKEN)

    def _of_urls(self, urls: Mapping[str, SplitUrl], salt: bytes) -> dict[str, int]:
        return {mark: self._name(salt, url.data) for mark, url in urls.items()}

    def _name(self, salt: bytes, content: bytes | memoryview) -> int:
        digest = xxhash.xxh3_64(len(salt).to_bytes(8, "big") + salt, seed=self._seed)
        digest.update(content)
        return digest.intdigest()

    def _blocks(self, text: bytes, salt: bytes) -> tuple[int, ...]:
        start = found.start() if (found := _START.search(text)) else 0
        digest = xxhash.xxh3_64(len(salt).to_bytes(8, "big") + salt, seed=self._seed)
        blocks = []
        end = min(len(text) - _BLOCK_NBYTES + 1, start + _MAX_BLOCKS * _BLOCK_NBYTES)
        for at in range(start, end, _BLOCK_NBYTES):
            digest.update(text[at : at + _BLOCK_NBYTES])
            blocks.append(digest.intdigest())
        return tuple(blocks)


def _without_marks(text: bytes, names: Mapping[str, int]) -> bytes:
    for mark, name in names.items():
        text = text.replace(mark.encode(), b"%016x" % name, 1)
    return text
