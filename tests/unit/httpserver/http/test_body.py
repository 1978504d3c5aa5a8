"""A body that arrives in pieces."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from starlette.requests import Request

from mmserve.httpserver.http import body as body_module
from mmserve.httpserver.http.body import read_body


@pytest.mark.parametrize(("long", "threads"), [(True, 1), (False, 0)])
def test_the_pieces_of_a_long_body_are_joined_in_a_thread(
    monkeypatch: pytest.MonkeyPatch, long: bool, threads: int
) -> None:
    started: list[threading.Thread] = []
    start = threading.Thread.start

    def count(thread: threading.Thread) -> None:
        started.append(thread)
        start(thread)

    async def test() -> bytes | bytearray:
        pieces = [b"abc", b"def", b"g"]

        async def receive() -> dict[str, Any]:
            piece = pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

        monkeypatch.setattr(body_module, "_LONG_NBYTES", 7 if long else 8)
        monkeypatch.setattr(threading.Thread, "start", count)
        body = await read_body(Request({"type": "http", "headers": []}, receive), 100)
        assert len(started) == threads
        return body

    assert asyncio.run(test()) == b"abcdefg"
