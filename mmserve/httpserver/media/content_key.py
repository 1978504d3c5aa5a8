"""Content keys: a hash of an image's bytes and of everything else that determines its embedding.

Every field is hashed with its length, so two different lists of fields never give the same input. Pure.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import xxhash

from mmserve.config.fields import MmHash
from mmserve.processors.image_files.picture import Header

_SCHEMA = b"mmserve-image-3"
_NUMBER = struct.Struct("<Q")
_HEADER = struct.Struct("<QQQQQ")
"""Width, height, and the lengths of salt, mode and content; these three follow in this order."""


class ContentKeys:
    """Computes keys for one model and one image processor. ``seed``: keys of servers with different seeds differ."""

    def __init__(self, algorithm: MmHash, *, seed: int, model: str, settings: bytes) -> None:
        """``settings``: the image processor's settings digest. Raises ImportError if blake3 is not installed."""
        self._new = _seeded(algorithm, seed % 2**64)
        self._prefix = framed(_SCHEMA, model.encode(), settings)

    def of(self, content: bytes, picture: Header, cache_salt: str) -> bytes:
        """16 bytes for xxh3, 32 for the cryptographic hashes: truncation would weaken their collision resistance."""
        salt, mode = cache_salt.encode(), picture.mode.encode()
        header = _HEADER.pack(picture.width, picture.height, len(salt), len(mode), len(content))
        digest = self._new()
        digest.update(b"".join((self._prefix, header, salt, mode)))
        digest.update(content)
        return bytes(digest.digest())


def second_key(first: bytes, content: bytes) -> bytes:
    """The key of content whose first key collided with other content. Deterministic, so later requests find it too."""
    digest = hashlib.sha256(framed(b"second", first) + _NUMBER.pack(len(content)))
    digest.update(content)
    return digest.digest()


def framed(*fields: bytes) -> bytes:
    """Each field after its length (uint64, little-endian)."""
    return b"".join(_NUMBER.pack(len(field)) + field for field in fields)


def _seeded(algorithm: MmHash, seed: int) -> Callable[[], Any]:
    """Constructor of hash objects with ``update`` and ``digest``."""
    salt = _NUMBER.pack(seed)
    match algorithm:
        case "xxh3":
            return lambda: xxhash.xxh3_128(seed=seed)
        case "sha256":
            return lambda: hashlib.sha256(salt)
        case "blake3":
            from blake3 import blake3

            return lambda: blake3(salt)
