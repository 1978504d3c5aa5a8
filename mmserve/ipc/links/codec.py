"""Encodes messages as msgpack and decodes them with type checks."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Codec(Generic[T]):
    """Codec of ``T``, a struct or a tagged union of structs. ``decode`` raises msgspec.DecodeError."""

    def __init__(self, type_: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[T] = msgspec.msgpack.Decoder(type_)

    def encode(self, message: T) -> bytes:
        return self._encoder.encode(message)

    def decode(self, data: bytes) -> T:
        return self._decoder.decode(data)
