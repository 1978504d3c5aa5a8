"""Memory is bounded in bytes: whatever a client sends, a worker keeps about as much as it counts, or refuses.

Each attack is sent by several connections, which stay open. The memory and the counted bytes are compared with those of
as many plain requests. Client and engine are in the same process and cost the same in both.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import json
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from mmserve.httpserver.call import MediaItem, MediaRef
from mmserve.httpserver.limits.media_budgets import RequestByteLimit
from mmserve.httpserver.media.local import read_data_url
from mmserve.messages.media import Processing
from mmserve.messages.request import GenerateRequest
from tests.fakes.http.http_upstream import Upstream
from tests.fakes.http.http_worker import Worker, http_worker, run

COUNT = 4
SLACK_NBYTES = 4096
"""For each connection: buffers that are not full in a plain request."""
BODY_START_NBYTES = 128 << 10
"""Of a body that arrives, its first part is in memory twice."""
WIDE = "\U0001f600"
"""Makes a whole text take four bytes a character."""


class Reader:
    async def read(self, refs: Sequence[MediaRef], cache_salt: str, processing: Processing) -> list[MediaItem]:
        contents = [read_data_url(ref, RequestByteLimit(1 << 30)) for ref in refs]
        return [MediaItem(content, 8, 8, content[-8:], ref.param) for content, ref in zip(contents, refs, strict=True)]


def _image(nbytes: int) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(bytes(nbytes)).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def _chat(*content: Any, **fields: Any) -> bytes:
    return json.dumps({"model": "stub", "messages": [{"role": "user", "content": list(content)}], **fields}).encode()


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


PLAIN = _chat(_text("hi"), _image(30), stream=True)
SAY = _text("hi")


async def _silent(upstream: Upstream, request: GenerateRequest) -> None:
    return None


async def _talkative(upstream: Upstream, request: GenerateRequest) -> None:
    for _ in range(20):
        upstream.reply(request, b"ten tokens", num_cached_tokens=0)


@dataclass(frozen=True)
class Attack:
    """``held``: where a request is when memory is measured. ``unsent``: the share of the body that never comes."""

    body: bytes
    held: str = "lease"
    unsent: float = 0.0
    behave: Any = _silent
    slack_nbytes: int = SLACK_NBYTES


HELD = {
    "a salt of the widest characters": Attack(_chat(SAY, _image(30), cache_salt=WIDE * 256)),
    "stop strings of the widest characters": Attack(
        _chat(SAY, _image(30), stop=[WIDE * 1022 + str(number) for number in range(16)])
    ),
    "blanks that a template trims": Attack(_chat(_text("hi" + " " * 400_000), _image(30))),
    "one wide character in much text": Attack(_chat(_text("x" * 400_000 + WIDE), _image(30))),
    "hundreds of messages": Attack(
        json.dumps(
            {
                "model": "stub",
                "messages": [
                    {"role": "user", "content": [_image(30)]},
                    *[{"role": "user", "content": str(n)} for n in range(500)],
                ],
            }
        ).encode()
    ),
    "hundreds of parts": Attack(_chat(*[_text(f"{number} ") for number in range(500)], _image(30))),
    "many images": Attack(_chat(*[_image(20_000 + number) for number in range(16)])),
    "an image that stays in the body": Attack(_chat(_image(1_200_000)), held="lease"),
    "biased tokens": Attack(_chat(SAY, _image(30), logit_bias={str(id): id / 10 for id in range(257)})),
    "many choices with log-probabilities": Attack(
        _chat(SAY, n=16, logprobs=True, top_logprobs=20, stream=True), held="engine"
    ),
    "half a body": Attack(_chat(_text("x" * 327_500)), held="body", unsent=0.5, slack_nbytes=BODY_START_NBYTES),
    "unread answers": Attack(_chat(SAY, n=4, logprobs=True, top_logprobs=20), held="answered", behave=_talkative),
}
REFUSED = {
    "a long salt": _chat(SAY, cache_salt="s" * 400_000),
    "a long stop string": _chat(SAY, stop="s" * 400_000),
    "thousands of stop strings": _chat(SAY, stop=["s"] * 10_000),
    "a huge model name": _chat(SAY, model="m" * 400_000),
    "thousands of messages": json.dumps(
        {"model": "stub", "messages": [{"role": "user", "content": "hi"}] * 10_000}
    ).encode(),
    "deep JSON": b'{"messages":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    "deep JSON in a field that is ignored": b'{"zzz":' + b"[" * 200_000 + b"]" * 200_000 + b',"messages":[]}',
    "more text than any context": _chat(_text(" " * 1_000_000)),
    "a long address": _chat({"type": "image_url", "image_url": {"url": "http://x/" + "y" * 400_000}}),
}


async def _connect(worker: Worker, sent: bytes, length: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has sent the head of a request for ``length`` bytes, and ``sent`` of them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.port, limit=1024)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    writer.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, length, sent))
    await writer.drain()
    return reader, writer


def _reached(worker: Worker, attack: Attack, count: int) -> Callable[[], bool]:
    return {
        "lease": lambda: len(worker.leases.held) - len(worker.leases.released) == count,
        "engine": lambda: len(worker.upstream.requests()) == 16 * count,
        "body": lambda: worker.context.body_memory.used_nbytes >= count * len(attack.body),
        "answered": lambda: [len(each.output) for each in _sequences(worker)] == [200] * 4 * count,
    }[attack.held]


def _sequences(worker: Worker) -> list[Any]:
    generate = worker.context.request_tasks._generate
    return list(generate.__self__.dispatcher._live.values())  # type: ignore[attr-defined]


async def _measure(worker: Worker, attack: Attack) -> tuple[int, int]:
    """Bytes in memory and bytes counted while COUNT connections hold what the attack sends."""
    worker.upstream.behave = attack.behave
    if attack.held == "lease":
        worker.leases.gate.clear()
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    sent = attack.body[: round(len(attack.body) * (1 - attack.unsent))]
    clients = [await _connect(worker, sent, len(attack.body)) for _ in range(COUNT)]
    await worker.until(_reached(worker, attack, COUNT))
    await worker.until(lambda: not any(writer.transport.get_write_buffer_size() for _, writer in clients))
    worker.upstream.received.clear()
    await asyncio.sleep(0.02)
    gc.collect()
    kept = tracemalloc.get_traced_memory()[0] - before
    counted = worker.context.body_memory.used_nbytes
    for _, writer in clients:
        writer.transport.abort()
    worker.leases.gate.set()
    await worker.idle()
    worker.upstream.received.clear()
    return kept, counted


@pytest.mark.parametrize("name", HELD)
def test_what_a_worker_keeps_is_counted(name: str) -> None:
    attack = HELD[name]

    async def test() -> None:
        async with http_worker(media=Reader(), limit_mm_per_prompt=16) as worker:
            plain = Attack(PLAIN)
            gc.freeze()  # collections are quick
            try:
                for each in (plain, attack):
                    await _measure(worker, each)  # caches are filled
                tracemalloc.start()
                kept_plain, counted_plain = await _measure(worker, plain)
                kept, counted = await _measure(worker, attack)
            finally:
                tracemalloc.stop()
                gc.unfreeze()
            assert kept - kept_plain <= 1.1 * (counted - counted_plain) + COUNT * attack.slack_nbytes

    run(test)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_worker_would_not_count_is_refused(name: str) -> None:
    async def test() -> None:
        async with http_worker() as worker:
            reader, writer = await _connect(worker, REFUSED[name], len(REFUSED[name]))
            assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
            await reader.readuntil(b"\r\n\r\n")
            assert len(await reader.readuntil(b"}}")) < 500
            writer.close()
            await worker.idle()

    run(test)
