"""Ids of tool calls and other items of an answer: equal whether the answer is streamed or not, and never repeated."""

from __future__ import annotations

import xxhash

_DIGITS = 24


def call_id(prefix: str, request_id: str, choice: int, number: int) -> str:
    """The id of the ``number``-th item of one choice, e.g. ``call_`` and 24 hexadecimal digits."""
    return f"{prefix}_{xxhash.xxh3_128_hexdigest(f'{request_id}/{choice}/{number}'.encode())[:_DIGITS]}"
