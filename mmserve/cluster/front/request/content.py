"""Names of pictures: a hash of a picture's bytes, however a request carries them.

The bytes are those of the file: base64 is decoded, pixels are not. Long pictures are hashed in a thread, in parts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pybase64
import xxhash

from mmserve.httpserver.media.local import decode_base64
from mmserve.runtime.errors import MediaError

_PART_NCHARS = 1 << 18
"""A multiple of 4, so that each part of base64 text decodes alone."""
_SMALL_NCHARS = 1 << 20
"""In all. Hashed on the event loop, in 0.3 ms."""
_THREADS = 2
"""Each may need a few times the memory of a picture whose text has escapes."""


class ContentNamer:
    """``seed``: of the front and its replicas."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._threads = ThreadPoolExecutor(_THREADS, "names")

    def name(self, salt: bytes, content: bytes) -> int:
        """Of any content, as a URL, for requests with this ``cache_salt``."""
        digest = self.digest(salt)
        digest.update(content)
        return digest.intdigest()

    async def names(self, salt: bytes, texts: Sequence[memoryview]) -> list[int]:
        """Of pictures in base64, as they stand in the JSON."""
        if sum(map(len, texts)) <= _SMALL_NCHARS:
            return [self._of_base64(salt, text) for text in texts]
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: [self._of_base64(salt, text) for text in texts]
        )

    def _of_base64(self, salt: bytes, text: memoryview) -> int:
        digest = self.digest(salt)
        try:
            for at in range(0, len(text), _PART_NCHARS):
                digest.update(pybase64.b64decode(text[at : at + _PART_NCHARS], validate=True))
            return digest.intdigest()
        except ValueError:
            return self.name(salt, _with_escapes(text))

    def digest(self, salt: bytes) -> xxhash.xxh3_64:
        """Of nothing yet, for requests with this ``cache_salt``."""
        return xxhash.xxh3_64(len(salt).to_bytes(8, "big") + salt, seed=self._seed)


def _with_escapes(text: memoryview) -> bytes:
    """The bytes of base64 with escapes of JSON or URLs; of text that is no base64, the text."""
    try:
        return decode_base64(text)
    except MediaError:
        return bytes(text)
