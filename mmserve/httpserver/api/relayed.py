"""Requests that a front relays: what it tells beside the client's body (``messages/relay``)."""

from __future__ import annotations

from starlette.requests import Request

from mmserve.httpserver.call import Relayed
from mmserve.messages.relay import RELAY_HEADER, Forged, opened
from mmserve.runtime.errors import Forbidden, Misdirected


def take_relay(
    request: Request, body: bytes | bytearray, secret: bytes | None, numbers: str = ""
) -> tuple[bytes | bytearray, Relayed | None]:
    """The client's own body, and what the front has added. Raises Forbidden for a header that no front has made, and
    Misdirected if another server has begun the answer and ``numbers``, the digest of this one, is not equal to its.

    Without a secret there is no front, and the header means nothing.
    """
    header = request.headers.get(RELAY_HEADER) if secret is not None else None
    if header is None or secret is None:
        return body, None
    try:
        relay, sampled = opened(header, body, secret)
    except Forged:
        raise Forbidden(f"{RELAY_HEADER} was not made with this server's --cluster-key-file") from None
    if relay.numbers and relay.numbers != numbers:
        raise Misdirected("this server does not compute the same text as the one that has begun this answer")
    relayed = Relayed(relay, sampled)
    return (body[: relay.body_nbytes] if len(body) > relay.body_nbytes else body), relayed
