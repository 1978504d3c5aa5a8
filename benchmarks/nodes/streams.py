"""Clients that ask one stream after the other, compare each text with what it should be, and measure pauses."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from benchmarks.nodes.workload import Body
from mmserve.cli.bench.connection import BrokenConnection, Url, post

_TIMEOUT_S = 60.0
_TRIES = 4
_AGAIN_S = 0.2


@dataclass
class Answer:
    """``pause_s``: the longest time without a piece of text."""

    text: str = ""
    error: str = ""
    pause_s: float = 0.0


async def ask(url: str, body: Body, on_piece: Callable[[float], object]) -> Answer:
    """One try at one front. ``on_piece``: told when each piece of text came."""
    answer, last_s, ended = Answer(), time.perf_counter(), False

    def read(line: bytes, now_s: float) -> None:
        nonlocal last_s, ended
        if not line.startswith(b"data:"):
            return
        if line[5:].strip() == b"[DONE]":
            ended = True
            return
        event = json.loads(line[5:])
        if "error" in event:
            answer.error = str(event["error"])
        answer.pause_s, last_s = max(answer.pause_s, now_s - last_s), now_s
        for choice in event.get("choices", ()):
            if text := choice["delta"].get("content"):
                answer.text += text
                on_piece(now_s)

    try:
        async with asyncio.timeout(_TIMEOUT_S):
            answered = await post(Url.parse(f"{url}/v1/chat/completions"), json.dumps(body).encode(), None, read)
        if answered.status != 200:
            answer.error = f"{answered.status} {answered.content[:200]!r}"
        elif not (ended or answer.error):
            answer.error = "the stream has no end"
    except (BrokenConnection, OSError) as error:  # a timeout is an OSError
        answer.error = repr(error)
    return answer


@dataclass
class Clients:
    """``count`` clients at work until ``stop``. Client i asks ``urls[i % n]`` first, and the others in turn if it gets
    an error. ``expected``: the text of each body; empty: remember the first."""

    urls: Sequence[str]
    bodies: Sequence[Body]
    count: int
    expected: dict[int, str] = field(default_factory=dict)
    asked: int = 0
    retried: list[int] = field(default_factory=list)
    """Clients, once for each try that got an error."""
    failed: list[str] = field(default_factory=list)
    changed: list[int] = field(default_factory=list)
    """Bodies."""
    pause_s: float = 0.0
    answer_s: float = 0.0
    """The longest time from asking to the whole answer, whatever was tried."""
    pieces_s: list[float] = field(default_factory=list)
    """When each piece of text came, by ``time.perf_counter``."""
    retry_s: float = 0.0
    """The longest time from an error to the whole answer of the next try."""
    _stopped: bool = False

    async def run(self) -> None:
        """Until ``stop``, and the last answer."""
        await asyncio.gather(*(self._client(number) for number in range(self.count)))

    def stop(self) -> None:
        self._stopped = True

    async def _client(self, client: int) -> None:
        number = client
        while not self._stopped:
            await self._one(client, number % len(self.bodies))
            number += self.count + 1  # all bodies in turn, whatever the number of clients

    async def _one(self, client: int, number: int) -> None:
        self.asked += 1
        asked_s, failed_s = time.perf_counter(), None
        for attempt in range(_TRIES):
            url = self.urls[(client + attempt) % len(self.urls)]
            answer = await ask(url, self.bodies[number], self.pieces_s.append)
            if not answer.error:
                break
            failed_s = failed_s or time.perf_counter()
            self.retried.append(client)
            await asyncio.sleep(_AGAIN_S)
        else:
            self.failed.append(answer.error)
            return
        if failed_s is not None:
            self.retry_s = max(self.retry_s, time.perf_counter() - failed_s)
        self.pause_s = max(self.pause_s, answer.pause_s)
        self.answer_s = max(self.answer_s, time.perf_counter() - asked_s)
        if self.expected.setdefault(number, answer.text) != answer.text:
            self.changed.append(number)
