"""Content keys: a hash of an image's bytes and of all else that makes its embedding what it is.

Every field stands behind its length, so no two different lists of fields are the same input. Knows no cache.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import xxhash

from mmserve.config.config import MmHash
from mmserve.processors.picture import Header

_SCHEMA = b"mmserve-image-3"
_NUMBER = struct.Struct("<Q")
_FACTS = struct.Struct("<QQQQQ")
"""Width and height; the lengths of salt, mode and content, which follow in this order."""


class ContentKeys:
    """Keys of one model and one image processor; ``seed`` makes them mean nothing to another server."""

    def __init__(self, algorithm: MmHash, *, seed: int, model: str, settings: bytes) -> None:
        """``settings``: the processor's digest. Raises ImportError for blake3 where that is not installed."""
        self._new = _seeded(algorithm, seed % 2**64)
        self._fixed = framed(_SCHEMA, model.encode(), settings)

    def of(self, content: bytes, picture: Header, cache_salt: str) -> bytes:
        """16 bytes for xxh3; 32 for the cryptographic hashes, of which half would only be half as hard to break."""
        salt, mode = cache_salt.encode(), picture.mode.encode()
        facts = _FACTS.pack(picture.width, picture.height, len(salt), len(mode), len(content))
        digest = self._new()
        digest.update(b"".join((self._fixed, facts, salt, mode)))
        digest.update(content)
        return bytes(digest.digest())


def second_key(first: bytes, content: bytes) -> bytes:
    """For content that was found to share its first key with other bytes; again the same for the same content."""
    digest = hashlib.sha256(framed(b"second", first) + _NUMBER.pack(len(content)))
    digest.update(content)
    return digest.digest()


def framed(*fields: bytes) -> bytes:
    """Each field behind its length as a 64-bit little-endian number."""
    return b"".join(_NUMBER.pack(len(field)) + field for field in fields)


def _seeded(algorithm: MmHash, seed: int) -> Callable[[], Any]:
    """Makes hash objects with ``update`` and ``digest``."""
    salt = _NUMBER.pack(seed)
    match algorithm:
        case "xxh3":
            return lambda: xxhash.xxh3_128(seed=seed)
        case "sha256":
            return lambda: hashlib.sha256(salt)
        case "blake3":
            from blake3 import blake3

            return lambda: blake3(salt)
