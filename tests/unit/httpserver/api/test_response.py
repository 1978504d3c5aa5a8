"""Whole answers go to the connection in parts, so that an unread one waits with its request, not in a buffer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.types import Message

from mmserve.httpserver.api.response import PART_NBYTES, send_events, send_json
from mmserve.messages.relay import Relay


@pytest.mark.parametrize("nbytes", [0, 2, PART_NBYTES, PART_NBYTES + 1, 3 * PART_NBYTES])
def test_json_is_sent_in_parts_of_bounded_size(nbytes: int) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    body = bytes(range(256)) * (nbytes // 256) + b"x" * (nbytes % 256)
    asyncio.run(send_json(send, body))
    start, *parts = sent
    assert dict(start["headers"])[b"content-length"] == str(nbytes).encode()
    assert b"".join(part["body"] for part in parts) == body
    assert max(len(part["body"]) for part in parts) <= PART_NBYTES
    assert [part["more_body"] for part in parts] == [True] * (len(parts) - 1) + [False]
    assert len(parts) == max(1, -(-nbytes // PART_NBYTES))


@pytest.mark.parametrize("at", range(1, 9))
def test_events_that_a_client_has_are_left_out_wherever_their_parts_end(at: int) -> None:
    """The end of an event may itself be cut."""

    async def events() -> AsyncGenerator[bytes, None]:
        for part in (b"data: a\n\n"[:at], b"data: a\n\n"[at:], b"data: b\n\n"):
            yield part

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    relay = Relay(request_id="r", created_s=0, body_nbytes=0, num_events=1)
    deltas = SimpleNamespace(failure=None, take_sampled=list)
    task = SimpleNamespace(call=SimpleNamespace(relayed=SimpleNamespace(relay=relay)), deltas=deltas)
    asyncio.run(send_events(send, events(), cast(Any, task)))
    assert b"".join(message.get("body", b"") for message in sent) == b"data: b\n\n"
