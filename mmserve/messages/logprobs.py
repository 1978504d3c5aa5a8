"""The log-probabilities that come with one sampled token, packed: (id, log-probability) of the token itself, then of
the most likely ones, most likely first. The rank packs them, the HTTP worker unpacks them, all between pass them on.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

MAX_TOP = 20
"""Of the most likely tokens, so many can be asked for."""

_PAIR = struct.Struct("<if")


def pack(pairs: Iterable[tuple[int, float]]) -> bytes:
    """Eight bytes a pair: int32, float32."""
    return b"".join(_PAIR.pack(token_id, logprob) for token_id, logprob in pairs)


def unpack(packed: bytes) -> list[tuple[int, float]]:
    """The pairs again. Raises struct.error when these are not whole pairs."""
    return [(token_id, logprob) for token_id, logprob in _PAIR.iter_unpack(packed)]
