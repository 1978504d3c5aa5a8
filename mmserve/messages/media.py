"""References to an image in the shared-memory arena and in a prompt."""

from __future__ import annotations

import msgspec


class Handle(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One extent of the arena. Valid only while the extent carries this generation; otherwise a cache miss."""

    generation: int
    offset: int
    nbytes: int
    """Bytes of the payload, without the extent's header and trailer."""


class MediaSpan(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="span"):
    """One image of a prompt: the position of its tokens, and its bytes and embedding rows in the arena."""

    start: int
    """Prompt index of the first image token."""
    num_tokens: int
    item_id: int
    data: Handle | None
    """Compressed bytes as the client sent them. None if the embedding was ready at allocation."""
    embed: Handle
    """Embedding rows [num_tokens, hidden_size] in the deployment's dtype."""
    media_index: int
    """Index among the request's images, for error messages."""
    decoded_nbytes: int = 0
    """Estimated memory for decoding, from the image size in the header."""
    first_row: int = 0
    """The row of the item at which this span begins; one item may have several spans."""
    grid: tuple[int, int, int] = (1, 1, 1)
    """(times, rows, columns) of the span's tokens in the picture, for rotary positions with several axes."""
