"""Packed log-probabilities of a sampled token: pairs of (token id, log-probability) for it, then for the top tokens.

Top tokens are ordered by falling probability. Ranks pack, HTTP workers unpack, the router forwards the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

MAX_TOP = 20
"""Largest number of top tokens that a request can ask for."""

_PAIR = struct.Struct("<if")
PAIR_NBYTES = _PAIR.size
"""Length of one packed pair."""


def pack(pairs: Iterable[tuple[int, float]]) -> bytes:
    """Pack pairs of (token id, log-probability), 8 bytes each: int32, float32."""
    return b"".join(_PAIR.pack(token_id, logprob) for token_id, logprob in pairs)


def unpack(packed: bytes) -> list[tuple[int, float]]:
    """The pairs of packed bytes. Raises struct.error if the length is not a multiple of 8."""
    return [(token_id, logprob) for token_id, logprob in _PAIR.iter_unpack(packed)]
