"""A closed connection and its request are freed at once: the garbage collector finds nothing of them."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.fakes.http.http_upstream import say_then_hold
from tests.fakes.http.http_worker import Worker, http_worker, run

BODY = json.dumps({"model": "stub", "messages": [{"role": "user", "content": "hi"}], "stream": True, "n": 2}).encode()
HEAD = (
    "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    f"content-length: {len(BODY)}"
)


@contextmanager
def garbage() -> Iterator[list[str]]:
    """Types of the server's objects that only a collection would have freed; complete when the context ends."""
    found: list[str] = []
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        yield found
        gc.collect()
        found += [f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage]
    finally:
        gc.set_debug(0)
        gc.enable()
        gc.garbage.clear()
    found[:] = [name for name in found if name.startswith(("mmserve.", "uvicorn.", "uvloop."))]


async def _ask(worker: Worker, sent: bytes, until: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
    writer.write(HEAD.encode() + b"\r\n\r\n" + sent)
    if until:
        await reader.readuntil(until)
    else:
        await worker.until(lambda: worker.context.admission.in_flight == 1)
    writer.transport.abort()
    await worker.until(lambda: not worker.context.admission.in_flight)
    await worker.idle()


@pytest.mark.parametrize(
    ("sent", "until"),
    [(BODY[:20], b""), (BODY, b""), (BODY, b"data: "), (b"[" * len(BODY), b"}}")],
    ids=["within the body", "after the body", "while streaming", "refused"],
)
def test_an_aborted_request_leaves_no_garbage(sent: bytes, until: bytes) -> None:
    async def test() -> None:
        async with http_worker() as worker:
            worker.upstream.behave = say_then_hold("x")
            await _ask(worker, sent, until)  # caches are filled by the first one
            with garbage() as found:
                await _ask(worker, sent, until)
                for _ in range(5):
                    await asyncio.sleep(0.01)  # the event loop lets go of the connection
            assert found == []

    run(test)
