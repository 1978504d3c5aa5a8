"""What a front and a replica tell each other beside a client's request and its answer.

With a request: a header that only who knows the shared secret can make, and after the body the tokens that the client
has already, if an earlier replica died. With a stream: an SSE comment before the events of each delta, with the tokens
that they are made of. From these another replica makes the same events again.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
from collections.abc import Iterable

import msgspec

from mmserve.messages.reply import FinishReason

RELAY_HEADER = "x-mmserve-relay"
SERVER_HEADER = "x-mmserve-server"
"""With an answer to a front: the digest of what decides about its text (``text_facts_of``), and BY_KEY if each API key
has caches of its own."""
BY_KEY = "by-key"
BEGINNING_NBYTES, NAME_NBYTES = 512, 16
_COMMENT = b": mmserve "
_END = b"\n\n"
GIVEN_UP = b": mmserve-given-up" + _END
"""The last comment of a stream that the server cannot end, because it ends itself or its engine is gone. Another server
goes on with it."""
_ARRAY = struct.Struct(">BI")
"""Head of an array in msgpack: its type, and its length."""


class Sampled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The tokens of one delta of a choice. ``finish``, ``logprobs`` and ``num_cached_tokens``: as in TokenReply."""

    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[bytes, ...] = ()
    finish: FinishReason | None = None
    num_cached_tokens: int = 0


class Relay(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """``request_id`` and ``created_s``: what the answer's ids and times are made from, equal on all replicas.

    ``body_nbytes``: length of the client's body; what follows it is the packed ``Sampled`` so far. ``num_events``:
    events of the answer that the client has, pings aside.
    """

    request_id: str
    created_s: int
    body_nbytes: int
    num_events: int = 0
    pictures: tuple[tuple[int, int], ...] = ()
    """The front's names of the request's pictures in their order, each with the bytes of text before it."""
    blocks: tuple[int, ...] = ()
    """Its names of the text's first BEGINNING_NBYTES bytes, of the first twice as many, and so on. In the text, each
    picture of the body is NAME_NBYTES long, and one that is fetched as long as its URL."""
    text_nbytes: int = 0
    numbers: str = ""
    """With tokens so far: the digest of the replica that they are from."""


class Forged(Exception):
    """The header was not made with this secret, or not for this request."""


_encoder = msgspec.msgpack.Encoder()
_relays = msgspec.msgpack.Decoder(Relay)
_sampled = msgspec.msgpack.Decoder(Sampled)
_many_sampled = msgspec.msgpack.Decoder(tuple[Sampled, ...])


class SampledSoFar:
    """The tokens of an answer so far, packed as they came: a few bytes each."""

    def __init__(self, sampled: Iterable[Sampled] = ()) -> None:
        self._packed = bytearray()
        self._count = 0
        for each in sampled:
            self.add(_encoder.encode(each))

    def __len__(self) -> int:
        """How many ``Sampled``."""
        return self._count

    @property
    def nbytes(self) -> int:
        """What they take in memory."""
        return len(self._packed)

    def add(self, packed: bytes) -> None:
        """One ``Sampled``, as ``packed_of`` gives it."""
        self._packed += packed
        self._count += 1

    def tail(self) -> bytes:
        """What follows a request's body: an array of them, or nothing."""
        return _ARRAY.pack(0xDD, self._count) + self._packed if self._count else b""


def sealed(relay: Relay, tail: bytes, secret: bytes) -> str:
    """The header's value, for a request whose body ``tail`` is to follow."""
    packed = _encoder.encode(relay)
    return f"{base64.b64encode(packed).decode()}.{_mac(packed, tail, secret)}"


def opened(header: str, body: bytes | bytearray, secret: bytes) -> tuple[Relay, tuple[Sampled, ...]]:
    """The relay of a request, and the tokens so far, from its header and the whole body. Raises Forged."""
    text, _, mac = header.partition(".")
    try:
        packed = base64.b64decode(text, validate=True)
        relay = _relays.decode(packed)
    except (binascii.Error, msgspec.DecodeError, RecursionError, ValueError):
        raise Forged from None
    tail = bytes(memoryview(body)[max(0, relay.body_nbytes) :])
    if not hmac.compare_digest(mac.encode(), _mac(packed, tail, secret).encode()):  # a str must be ASCII
        raise Forged
    return relay, _many_sampled.decode(tail) if tail else ()


def comment(sampled: Sampled) -> bytes:
    """The SSE comment that tells a delta's tokens."""
    return _COMMENT + base64.b64encode(_encoder.encode(sampled)) + _END


def packed_of(event: bytes) -> bytes | None:
    """The packed ``Sampled`` of such a comment; None for any other event. Raises ValueError or msgspec.DecodeError for
    a damaged one."""
    if not event.startswith(_COMMENT):
        return None
    packed = base64.b64decode(event[len(_COMMENT) : -len(_END)], validate=True)
    _sampled.decode(packed)
    return packed


def commented(event: bytes) -> Sampled | None:
    """What such a comment tells; None for any other event. Raises what ``packed_of`` raises."""
    packed = packed_of(event)
    return None if packed is None else _sampled.decode(packed)


def _mac(packed: bytes, tail: bytes, secret: bytes) -> str:
    return hmac.new(secret, len(packed).to_bytes(8, "big") + packed + tail, hashlib.sha256).hexdigest()
