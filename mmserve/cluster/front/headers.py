"""Which headers of a request a replica gets, and which of its answer the client. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Headers = Sequence[tuple[bytes, bytes]]
_HOP_BY_HOP = frozenset(
    (b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade", b"proxy-authenticate")
)
_REPLACED = frozenset((b"x-request-id", b"request-id", b"date", b"server"))
"""The front has its own."""


def is_stream(headers: Headers) -> bool:
    """Of an answer: server-sent events."""
    return dict(headers).get(b"content-type", b"").startswith(b"text/event-stream")


def kept(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Of a replica's answer, for the client."""
    return [each for each in headers if each[0] not in _HOP_BY_HOP and each[0] not in _REPLACED]


def forwarded_headers(headers: Headers, added: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
    """A client's headers for a replica: without those of its connection and those that only fronts may send."""
    return [
        *(
            (name, value)
            for name, value in headers
            if name not in _HOP_BY_HOP
            and name not in added
            and name not in (b"host", b"content-length", b"expect")
            and not name.startswith(b"x-mmserve-")
        ),
        *added.items(),
    ]
