"""One client request in the server's own words: what every protocol parses to and every helper of the path takes.

Knows no protocol, no socket and no engine.
"""

from __future__ import annotations

import random
from array import array
from dataclasses import dataclass
from typing import Literal

import msgspec

from mmserve.messages.cache import MediaRecord
from mmserve.messages.media import MediaSpan
from mmserve.messages.sampling import SamplingParams

AllocVersion = Literal["v1", "v2"]
"""How a request allocates its images: v1 one image after another, one RPC a call; v2 concurrently, one RPC a request.
Also the value of the metric label ``alloc``."""

_RANDOM = random.Random()  # seeded by the operating system


def new_request_id() -> str:
    """32 random hexadecimal digits: unique, not secret.

    Not from ``secrets``: a system call releases the interpreter's lock, and the event loop would have to wait for it.
    """
    return f"{_RANDOM.getrandbits(128):032x}"


class MediaRef(msgspec.Struct, frozen=True):
    """An image as the client named it; ``param`` is where (e.g. ``messages[1].content[0].image_url.url``)."""

    url: str
    param: str
    data: memoryview | None = None
    """Base64 text of a data: URL as it stands in the request's JSON; ``url`` then ends with the comma before it."""
    content: bytes | None = None
    """The image itself, where it has been decoded from base64 already; ``url`` then is its beginning."""

    @property
    def scheme(self) -> str:
        """Of the URL, in lower case."""
        return self.url[:8].partition(":")[0].lower()

    @property
    def is_inline(self) -> bool:
        """Did it come with the request's body?"""
        return self.scheme == "data"

    @property
    def nbytes(self) -> int:
        """Length of the whole URL: about what there is to decode."""
        return len(self.url) + len(self.data or self.content or b"")


@dataclass(frozen=True)
class TextPart:
    text: str


@dataclass(frozen=True)
class MediaPart:
    """Stands for ``GenerateCall.media[index]`` at this place of the conversation."""

    index: int


@dataclass(frozen=True)
class Message:
    role: str
    content: tuple[TextPart | MediaPart, ...]


@dataclass(frozen=True)
class GenerateCall:
    """A validated request. ``sampling.max_tokens`` 0 means: the rest of the context."""

    request_id: str
    model: str
    messages: tuple[Message, ...]
    media: tuple[MediaRef, ...]
    sampling: SamplingParams
    arrival_s: float
    n: int = 1
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    cache_salt: str = ""
    """Content keys of different salts never meet."""


class MediaItem(msgspec.Struct, frozen=True):
    """One image, read: compressed bytes as they came, facts from its header, content key. Nothing is decoded."""

    data: bytes
    width: int
    height: int
    key: bytes
    param: str


class LeasedItem(msgspec.Struct, frozen=True):
    """One image with its place in the arena, leased to the request."""

    record: MediaRecord
    num_tokens: int
    decoded_nbytes: int = 0


@dataclass(frozen=True)
class Prompt:
    """int64 token ids with virtual ids for images, and where those stand."""

    ids: array[int]
    spans: tuple[MediaSpan, ...] = ()
