"""Whole answers go to the connection in parts, so that an unread one waits with its request, not in a buffer."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from mmserve.httpserver.api.response import PART_NBYTES, send_json


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
