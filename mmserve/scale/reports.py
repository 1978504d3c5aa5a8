"""What a replica tells a front: what it holds, and how loaded it is. Structs only.

Names are the first 64 bits of a picture's content key, or a block's name in the KV events (``router/kv_events``). All
replicas give equal contents equal names if they share ``--mm-hash-seed``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["pictures", "blocks"]
NAME_NBYTES = 8


class Holdings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Names that came and went since report ``number`` - 1 of the same kind and ``epoch``.

    ``snapshot``: ``added`` is all that is held. ``epoch`` grows when the replica starts again and holds nothing.
    """

    kind: Kind
    epoch: int
    number: int
    added: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    snapshot: bool = False


class Load(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How long new work would wait, and what work costs there."""

    wait_s: float = 0.0
    """Until a new request's first step."""
    encoder_wait_s: float = 0.0
    """Until a new picture is encoded."""
    in_flight: int = 0
    """Requests from all fronts."""
    slots: int = 1
    """Sequences that are computed at once."""
    request_s: float = 0.0
    """What each further request adds to the wait once all slots are taken."""
    encode_s: float = 0.0
    """To decode and encode one picture."""
    prefill_s: float = 0.0
    """For each token of a prompt."""
    pressure_s: float = 0.0
    """What a picture more costs the others: pictures that are evicted for it and must be encoded again."""


def name_of(key: bytes) -> int:
    """The name of a content key."""
    return int.from_bytes(key[:NAME_NBYTES], "big")
