from __future__ import annotations

import base64

import pytest

from mmserve.messages.relay import Forged, Relay, Sampled, SampledSoFar, opened, sealed

_SECRET = b"0123456789abcdef0123456789abcdef"
_BODY = b"{}"
_RELAY = Relay(request_id="a", created_s=1, body_nbytes=len(_BODY))


def test_what_was_sealed_is_opened() -> None:
    tail = SampledSoFar([Sampled(0, (5,))]).tail()
    header = sealed(_RELAY, tail, _SECRET)
    assert opened(header, _BODY + tail, _SECRET) == (_RELAY, (Sampled(0, (5,)),))


@pytest.mark.parametrize(
    "header",
    [
        sealed(_RELAY, b"", _SECRET).partition(".")[0] + ".\xff",
        base64.b64encode(b"\x81\xa1x" + b"\x91" * 40_000).decode() + ".00",
        "\xff.00",
        "",
    ],
    ids=["digest that is no ASCII", "deep nesting", "no base64", "empty"],
)
def test_any_header_that_a_client_may_send_is_refused_as_forged(header: str) -> None:
    with pytest.raises(Forged):
        opened(header, _BODY, _SECRET)
