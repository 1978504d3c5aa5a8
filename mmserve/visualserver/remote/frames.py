"""Messages between a visual server and an encoder on another machine, and the frames that carry them. Pure.

    4 B length of the message | message (msgpack) | 32 B its signature | payload, if the message announces one

A signature is HMAC-SHA256 with a key of this connection and direction, over the number of the frame and the message; it
is checked before anything in the message is believed. The message has the SHA-256 of its payload. So nothing can be
changed, left out, repeated or sent by others. Nothing is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from typing import Annotated

import msgspec

from mmserve.ipc.links.codec import Codec
from mmserve.messages.media import Processing

MAX_MESSAGE_NBYTES = 64 << 10
LENGTH = struct.Struct("!I")
SIGNATURE_NBYTES = DIGEST_NBYTES = 32
NONCE_NBYTES = 32
GREETING = b"mmserve-encoder-1"
"""The first bytes of a connection, before the encoder's nonce."""


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="hello"):
    """From an encoder, its first message."""

    name: str
    """The same at each connection of one process."""
    facts: dict[str, str]
    """What must be equal on both sides, by its name."""
    credit: int
    """Bytes of compressed pictures that it takes before it has answered. A larger picture is never sent."""
    slots: int
    """Pictures that it takes before it has answered."""


class Welcome(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="welcome"):
    """To an encoder. ``visual_servers``: as many listen at the following ports."""

    visual_servers: int


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="refused"):
    """To an encoder that cannot take part. ``reason``: a line that says what to change."""

    reason: str


class Encode(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="encode"):
    """To an encoder; the compressed picture is the payload. ``key``: its content key, which depends on who may share
    its rows."""

    job: int
    processing: Processing
    key: bytes
    nbytes: Annotated[int, msgspec.Meta(ge=0)]
    digest: bytes


class Result(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="result"):
    """From an encoder; the embedding rows, in the deployment's dtype, are the payload."""

    job: int
    nbytes: Annotated[int, msgspec.Meta(ge=0)]
    digest: bytes
    here_s: float
    """From the picture's last byte to this message."""
    compute_s: float
    """Of these, decoding and encoding; of a batch this picture's share. 0: it had the rows."""


class Fail(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="fail"):
    """From an encoder: it has no rows for this picture."""

    job: int
    reason: str


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag_field="t", tag="ping"):
    """From both sides, several times in each --node-timeout."""


Message = Hello | Welcome | Refused | Encode | Result | Fail | Ping


class BrokenEncoderLink(Exception):
    """The connection has ended, or its other end does not keep to the protocol."""


def payload_nbytes(message: Message) -> int:
    return message.nbytes if isinstance(message, Encode | Result) else 0


class Direction:
    """Signs or checks the frames of one direction of one connection, in their order."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0
        self._codec: Codec[Message] = Codec(Message)

    def frame(self, message: Message) -> bytes:
        """Without the payload, which the caller sends next."""
        data = self._codec.encode(message)
        return LENGTH.pack(len(data)) + data + self._signature(data)

    def message(self, data: bytes, signature: bytes) -> Message:
        """Raises BrokenEncoderLink if it was not signed by the other end, or is not the next one."""
        if not hmac.compare_digest(self._signature(data), signature):
            raise BrokenEncoderLink("a message with a wrong signature")
        try:
            return self._codec.decode(data)
        except msgspec.DecodeError as error:
            raise BrokenEncoderLink(f"a message that does not decode: {error}") from None

    def _signature(self, data: bytes) -> bytes:
        self._number += 1
        return hmac.digest(self._key, self._number.to_bytes(8, "big") + data, hashlib.sha256)


def message_nbytes(prefix: bytes) -> int:
    """From the first four bytes of a frame. Raises BrokenEncoderLink."""
    (nbytes,) = LENGTH.unpack(prefix)
    if nbytes > MAX_MESSAGE_NBYTES:
        raise BrokenEncoderLink(f"a message of {nbytes} bytes")
    return int(nbytes)


def digest(payload: bytes | bytearray | memoryview) -> bytes:
    return hashlib.sha256(payload).digest()


@dataclass(frozen=True)
class Session:
    """What both ends derive from the shared secret and their nonces.

    The encoder sends GREETING and its nonce; the visual server its own nonce and ``listener_proof``; the encoder
    ``encoder_proof``.
    """

    listener_proof: bytes
    encoder_proof: bytes
    to_encoder: bytes
    to_listener: bytes

    @classmethod
    def of(cls, secret: bytes, encoder_nonce: bytes, listener_nonce: bytes) -> Session:
        def derive(use: bytes) -> bytes:
            return hmac.digest(secret, use + encoder_nonce + listener_nonce, hashlib.sha256)

        return cls(derive(b"listener"), derive(b"encoder"), derive(b"to encoder"), derive(b"to listener"))
