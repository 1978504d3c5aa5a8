"""Names for things in the shared-memory arena. A handle is checked against the arena itself; a wrong one is a miss."""

from __future__ import annotations

import msgspec


class Handle(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One extent of the arena: valid only while the bytes there carry this generation."""

    generation: int
    offset: int
    nbytes: int
    """Payload bytes, without the extent's header and trailer."""


class MediaSpan(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="span"):
    """Where one image's tokens stand in a prompt and where its bytes and embedding rows are in the arena."""

    start: int
    """Index in the prompt of the first image token."""
    num_tokens: int
    item_id: int
    data: Handle | None
    """Compressed bytes as the client sent them; None when the embedding was ready at allocation."""
    embed: Handle
    """num_tokens rows of hidden_size in the deployment's dtype."""
    media_index: int
    """Which image of the request this is, for error messages."""
    decoded_nbytes: int = 0
    """About the memory that its decoding takes, by the size in its header."""
