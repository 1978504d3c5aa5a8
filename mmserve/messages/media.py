"""References to an image in the shared-memory arena and in a prompt."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


class Handle(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One extent of the arena. Valid only while the extent carries this generation; otherwise a cache miss."""

    generation: int
    offset: int
    nbytes: int
    """Bytes of the payload, without the extent's header and trailer."""


class Processing(msgspec.Struct, frozen=True, array_like=True):
    """How the images of a request are processed."""

    options: str = ""
    """JSON object of the image processor's settings that the request changes. Empty: none, all are the server's."""
    num_images: int = 1
    """Images of the request. Some families process one image differently from several."""


DEFAULT_PROCESSING = Processing()
Size = tuple[int, int]
"""(width, height) of a picture in pixels."""
Grid = tuple[int, int, int]
"""(t, h, w): frames, rows and columns of a picture's embedding rows. (1, 1, rows) in a model without a grid."""


class ExpandedImage(msgspec.Struct, frozen=True, array_like=True):
    """What a picture becomes in a prompt, of a model whose image processor only transformers has."""

    text: str
    """With the token of a row once for each run of rows."""
    grids: tuple[Grid, ...]
    """Of the runs."""


class MediaSpan(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="span"):
    """Consecutive rows of an image in a prompt: their position, and the image's bytes and rows in the arena.

    An image of several runs has a span for each, with the same item.
    """

    start: int
    """Prompt index of the first row."""
    num_tokens: int
    """Rows of this span."""
    item_id: int
    data: Handle | None
    """Compressed bytes as the client sent them. None if the embedding is ready."""
    embed: Handle
    """All embedding rows [rows, streams * hidden_size] of the image, in the deployment's dtype."""
    media_index: int
    """Index among the request's images, for error messages."""
    decoded_nbytes: int = 0
    """Estimated memory for decoding, from the image size in the header."""
    first_row: int = 0
    """Row of the image at which the span begins."""
    processing: Processing = DEFAULT_PROCESSING
    grid: Grid = (1, 1, 1)
    """Of the span's rows, for rotary positions."""
    key: bytes = b""
    """Content key of the image, which names it to others (--kv-events-endpoint)."""


def short_key(key: bytes) -> int:
    """The first 64 bits of a content key, which tell pictures apart well enough for what is only a hint."""
    return int.from_bytes(key[:8], "big")


def end_beside_images(spans: Iterable[MediaSpan], start: int, end: int) -> int:
    """Where a chunk [start, end) of a prompt ends if it may not end inside a span: before that span, or after it if the
    chunk begins inside it or where it begins."""
    for span in spans:
        after = span.start + span.num_tokens
        if span.start < end < after:
            return span.start if span.start > start else after
    return end
