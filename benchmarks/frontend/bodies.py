"""Request bodies of the flood. They are made once; a few characters of each picture are changed before each sending."""

from __future__ import annotations

import base64
import json
import os
import random

from benchmarks.load.workload import jpeg

IMAGES = 4
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_STAMP_CHARS = 8


class Body:
    """One client's request: ``head`` in HTTP/1.1, and ``json``.

    Its pictures are a small photo followed by random bytes up to ``image_nbytes``, which decoders ignore.
    """

    def __init__(self, photo: bytes, image_nbytes: int, model: str) -> None:
        images = [photo + os.urandom(image_nbytes - len(photo)) for _ in range(IMAGES)]
        urls = ["data:image/jpeg;base64," + base64.b64encode(image).decode() for image in images]
        content: list[dict[str, object]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        content.append({"type": "text", "text": "What is different?"})
        message = {"role": "user", "content": content}
        body = json.dumps({"model": model, "messages": [message], "max_tokens": 1, "temperature": 0}).encode()
        fields = f"host: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self.head = f"POST /v1/chat/completions HTTP/1.1\r\n{fields}\r\n\r\n".encode()
        self.json = bytearray(body)
        self._stamps, at = [], 0
        for _ in range(IMAGES):
            at = self.json.index(b'"data:', at + 1)
            # Behind the photo, at a multiple of four characters, before the base64 padding.
            self._stamps.append(self.json.index(b",", at) + 1 + (len(photo) // 3 + 2) * 4)

    def stamp(self, number: int) -> None:
        """Change the content of all pictures. Different numbers give different pictures."""
        for index, at in enumerate(self._stamps):
            value = number * IMAGES + index
            text = "".join(_DIGITS[value >> 6 * digit & 63] for digit in range(_STAMP_CHARS))
            self.json[at : at + _STAMP_CHARS] = text.encode()


def make(count: int, image_nbytes: int, model: str) -> list[Body]:
    """``count`` requests of IMAGES pictures of that size."""
    photo = jpeg(random.Random(0), (320, 240))
    return [Body(photo, image_nbytes, model) for _ in range(count)]
