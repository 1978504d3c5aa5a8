"""Which headers of a request a replica gets, and which of its answer the client. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mmserve.messages.relay import BY_KEY, SERVER_HEADER

Headers = Sequence[tuple[bytes, bytes]]
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"proxy-authenticate")
)
_REPLACED = frozenset((b"x-request-id", b"request-id", b"date", b"server"))
"""The front has its own."""
_PRIVATE = b"x-mmserve-"
"""Between front and replica."""


def is_stream(headers: Headers) -> bool:
    """Of an answer: server-sent events."""
    return dict(headers).get(b"content-type", b"").startswith(b"text/event-stream")


class Said(NamedTuple):
    """What a replica says of itself beside an answer. ``numbers``: the digest of what decides about its texts."""

    numbers: str
    caches_by_key: bool


def said_of(headers: Headers) -> Said | None:
    """Of an answer; None if it says nothing, as where no front is expected."""
    if (server := dict(headers).get(SERVER_HEADER.encode())) is None:
        return None
    words = server.decode("latin-1").split()
    return Said("".join(each for each in words if each != BY_KEY), BY_KEY in words)


def key_of(headers: Headers) -> bytes:
    """The API key that a client has sent; empty without any."""
    found = dict(headers)
    scheme, _, token = found.get(b"authorization", b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else found.get(b"x-api-key", b"")


def kept(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Of a replica's answer, for the client."""
    return [
        each
        for each in headers
        if each[0] not in _HOP_BY_HOP and each[0] not in _REPLACED and not each[0].startswith(_PRIVATE)
    ]


def forwarded_headers(headers: Headers, added: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """A client's headers for a replica: without those of its connection and those that only fronts may send. The front
    has checked Origin beside the Host that the client knows; beside the replica's own it is a foreign one."""
    return [
        *(
            (name, value)
            for name, value in headers
            if name not in _HOP_BY_HOP
            and name not in added
            and name not in (b"host", b"origin", b"content-length", b"expect")
            and not name.startswith(_PRIVATE)
        ),
        *added.items(),
    ]
