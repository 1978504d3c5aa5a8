"""Packed log-probabilities of a token: pairs of (token id, log-probability) for it, then for the top tokens.

Top tokens are ordered by falling probability. Ranks pack, HTTP workers unpack, the router forwards the bytes.
Those of prompt tokens are packed in rows of equal length, one for each token from the second on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

MAX_TOP = 20
"""Largest number of top tokens that a request can ask for."""

_PAIR = struct.Struct("<if")
PAIR_NBYTES = _PAIR.size
"""Length of one packed pair."""
NO_TOKEN = -1
"""Token id of a pair that says nothing. A row that begins with one belongs to an image's token, which has no
log-probability; one among the top tokens stands where the vocabulary has no more."""


def row_nbytes(top: int) -> int:
    """Length of a prompt token's row with ``top`` top tokens."""
    return (1 + top) * PAIR_NBYTES


def pack(pairs: Iterable[tuple[int, float]]) -> bytes:
    """Pack pairs of (token id, log-probability), 8 bytes each: int32, float32."""
    return b"".join(_PAIR.pack(token_id, logprob) for token_id, logprob in pairs)


def first_id(packed: bytes) -> int:
    """The id of the token that packed bytes are about. Raises struct.error if they are empty."""
    return int(_PAIR.unpack_from(packed)[0])


def unpack(packed: bytes) -> list[tuple[int, float]]:
    """The pairs of packed bytes. Raises struct.error if the length is not a multiple of 8."""
    return [(token_id, logprob) for token_id, logprob in _PAIR.iter_unpack(packed)]
