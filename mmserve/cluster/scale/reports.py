"""What a replica tells a front: what it holds, and how loaded it is. Structs only.

Names are 64 bits that a front gives to pictures and to the beginnings of texts (``front/request/wants``). A replica
learns them with the requests, so it reports only what fronts have sent, and what its caches have told it that they
hold.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["pictures", "blocks"]


class Holdings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Names that came and went since report ``number`` - 1 of the same kind and ``epoch``; perhaps none.

    ``snapshot``: ``added`` is all that is held. ``epoch`` is another one when the replica has started again and holds
    nothing.
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
    """Until a new picture is encoded: for room in the arena, and for the pictures before it."""
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


class Report(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One message of a replica."""

    load: Load
    holdings: tuple[Holdings, ...] = ()
    facts: dict[str, str] = {}
    """With a snapshot: what decides about the text of the replica's answers, by name."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Report)
HOLDINGS = msgspec.msgpack.Decoder(Holdings)


def encoded(report: Report | Holdings) -> bytes:
    """As it is sent."""
    return _encoder.encode(report)


def decoded(data: bytes) -> Report:
    """Raises msgspec.DecodeError for anything else."""
    return _decoder.decode(data)
