"""Request bodies of the flood. They are made once; a few characters of each are changed before each sending."""

from __future__ import annotations

import base64
import json
import os
import random
from collections.abc import Callable, Mapping, Sequence

from mmserve.cli.bench.plan import jpeg, words

IMAGES = 4
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_STAMP_CHARS = 8
_STAMP = "A" * _STAMP_CHARS

Fields = Mapping[str, object]


class Body:
    """One client's request: ``head`` in HTTP/1.1, and ``json``. ``stamps``: places in the JSON that may change."""

    def __init__(self, path: str, fields: Fields, stamps: Callable[[bytes], Sequence[int]]) -> None:
        body = json.dumps(fields).encode()
        names = f"host: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        self.head = f"POST {path} HTTP/1.1\r\n{names}\r\n\r\n".encode()
        self.json = bytearray(body)
        self._stamps = stamps(body)

    def stamp(self, number: int) -> None:
        """Change all pictures, or the text. Different numbers give different ones."""
        for index, at in enumerate(self._stamps):
            value = number * IMAGES + index
            text = "".join(_DIGITS[value >> 6 * digit & 63] for digit in range(_STAMP_CHARS))
            self.json[at : at + _STAMP_CHARS] = text.encode()


def make(count: int, image_nbytes: int, model: str) -> list[Body]:
    """``count`` chat completions of IMAGES pictures of that size."""
    photo = jpeg(random.Random(0), (320, 240))
    return [_chat(photo, image_nbytes, model) for _ in range(count)]


def _chat(photo: bytes, image_nbytes: int, model: str) -> Body:
    urls = ["data:image/jpeg;base64," + padded(photo, image_nbytes) for _ in range(IMAGES)]
    content: list[dict[str, object]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content.append({"type": "text", "text": "What is different?"})
    message = {"role": "user", "content": content}
    fields = {"model": model, "messages": [message], "max_tokens": 1, "temperature": 0}
    return Body("/v1/chat/completions", fields, behind(photo))


def padded(photo: bytes, nbytes: int) -> str:
    """Base64 of a small photo and random bytes behind it, ``nbytes`` in all; decoders ignore those."""
    return base64.b64encode(photo + os.urandom(nbytes - len(photo))).decode()


def behind(photo: bytes) -> Callable[[bytes], list[int]]:
    """Stamps behind the photo of each picture, at a multiple of four characters, before the base64 padding."""
    start = base64.b64encode(photo)[:64]

    def places(body: bytes) -> list[int]:
        found, at = [], body.find(start)
        while at >= 0:
            found.append(at + (len(photo) // 3 + 2) * 4)
            at = body.find(start, at + 1)
        return found

    return places


def text(chars: int) -> str:
    """Words, as many as fit, behind a stamp."""
    return f"{_STAMP} {words(random.Random(chars), chars)}"[:chars]


def in_text(body: bytes) -> list[int]:
    """The stamp of ``text``."""
    return [body.index(_STAMP.encode())]
