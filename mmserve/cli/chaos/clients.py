"""Streaming clients: each asks questions one after another, and compares every answer with the expected one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx2

from mmserve.cli.chaos.questions import Question
from mmserve.cli.chaos.resumption import Pause

Verdict = Literal["right", "wrong", "failed", "broken"]
"""``failed``: the server answered with an error. ``broken``: the connection broke before the answer was complete."""

_TIMEOUT = httpx2.Timeout(300.0, connect=60.0)
_MAX_REFUSALS = 30
_REFUSED = (429, 503)
PAUSE_S = 0.2
_SALTED_EVERY = 4
"""Every fourth request of a client has a cache salt of its own: its pictures are decoded and encoded again, so that the
visual servers have work in which faults can meet them."""


@dataclass(frozen=True)
class Answer:
    """What a stream said. ``choices``: text, finish reason and log-probability tokens of each choice."""

    choices: tuple[tuple[str, str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Outcome:
    """One request as its client saw it. Times are of the monotonic clock, in seconds."""

    question: int
    verdict: Verdict
    detail: str
    started_s: float
    ended_s: float
    pauses: tuple[Pause, ...]
    """Those of at least PAUSE_S."""
    num_refusals: int
    """Times the server said 429 or 503 before it took the request. The client waits for Retry-After, as SDKs do."""


@dataclass
class _Stream:
    """Collects the events of one streamed answer."""

    texts: dict[int, list[str]] = field(default_factory=dict)
    finishes: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, list[str]] = field(default_factory=dict)
    pauses: list[Pause] = field(default_factory=list)
    error: str = ""
    done: bool = False

    def add(self, data: str) -> None:
        if data == "[DONE]":
            self.done = True
            return
        event = json.loads(data)
        if event.get("error"):
            self.error = str(event["error"])
        for choice in event.get("choices") or ():
            self._add_choice(choice)

    def _add_choice(self, choice: dict[str, Any]) -> None:
        index = choice["index"]
        self.texts.setdefault(index, []).append((choice.get("delta") or {}).get("content") or "")
        if choice.get("finish_reason"):
            self.finishes[index] = choice["finish_reason"]
        for entry in (choice.get("logprobs") or {}).get("content") or ():
            self.logprobs.setdefault(index, []).append(entry["token"])

    @property
    def has_text(self) -> bool:
        return any(map(any, self.texts.values()))

    @property
    def answer(self) -> Answer:
        return Answer(
            tuple(
                ("".join(self.texts[index]), self.finishes.get(index, ""), tuple(self.logprobs.get(index, ())))
                for index in sorted(self.texts)
            )
        )


class Failed(Exception):
    """The server answered a request with an error."""


class Clients:
    """Asks questions of one server. ``references`` is filled by ``ask_undisturbed``; later answers must equal them."""

    def __init__(
        self,
        url: str,
        model: str,
        questions: Sequence[Question],
        api_key: str | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.outcomes: list[Outcome] = []
        self.num_live = 0
        """Streams that have begun and not ended."""
        self._url = f"{url}/v1/chat/completions"
        self._model = model
        self._questions = questions
        self._references: dict[int, Answer] = {}
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx2.AsyncClient(
            timeout=_TIMEOUT, limits=limits, headers=headers, trust_env=False, transport=transport
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def ask_undisturbed(self, num_clients: int) -> None:
        """Ask every question once. Raises Failed if one is not answered, or not with the answer known beforehand."""
        numbers = iter(range(len(self._questions)))

        async def client() -> None:
            for number in numbers:
                stream, _ = await self._ask(self._questions[number])
                self._references[number] = stream.answer
                if wrong := self._difference(number, stream.answer):
                    raise Failed(f"question {number} has a wrong answer in an undisturbed run: {wrong}")

        async with asyncio.TaskGroup() as group:
            for _ in range(num_clients):
                group.create_task(client())

    async def ask_until(self, num_clients: int, stopped: Callable[[], bool]) -> None:
        """``num_clients`` at once ask the questions again and again, until ``stopped``; answers under way end first."""

        async def client(first: int) -> None:
            number, count = first, 0
            while not stopped():
                count += 1
                salt = f"{first}-{count}" if count % _SALTED_EVERY == 0 else ""
                self.outcomes.append(await self._outcome(number % len(self._questions), salt))
                number += num_clients

        async with asyncio.TaskGroup() as group:
            for first in range(num_clients):
                group.create_task(client(first))

    async def _outcome(self, number: int, salt: str) -> Outcome:
        started_s, refusals = time.monotonic(), 0
        pauses: tuple[Pause, ...] = ()
        verdict: Verdict = "right"
        try:
            stream, refusals = await self._ask(self._questions[number], salt)
            pauses = tuple(stream.pauses)
            if detail := self._difference(number, stream.answer):
                verdict = "wrong"
        except Failed as error:
            verdict, detail = "failed", str(error)
        except httpx2.TransportError as error:
            verdict, detail = "broken", repr(error)
        ended_s = time.monotonic()
        if verdict == "broken":
            await asyncio.sleep(0.2)  # an HTTP worker is being restarted
        return Outcome(number, verdict, detail, started_s, ended_s, pauses, refusals)

    def _difference(self, number: int, answer: Answer) -> str:
        """What is wrong with an answer, in words; empty if it is right."""
        expected = self._questions[number].expected
        if expected is not None and any(text.strip() != expected for text, _, _ in answer.choices):
            return f"{answer.choices!r} instead of {expected!r}"
        if answer != self._references[number]:
            return f"{answer.choices!r} instead of {self._references[number].choices!r}"
        return ""

    async def _ask(self, question: Question, salt: str = "") -> tuple[_Stream, int]:
        """The stream, and the number of refusals before it. Raises Failed."""
        body = {**question.body, "model": self._model, "stream": True}
        if salt:
            body["cache_salt"] = salt
        for refusals in range(_MAX_REFUSALS):
            async with self._http.stream("POST", self._url, json=body) as response:
                if response.status_code == 200:
                    return await self._read(response), refusals
                text = (await response.aread()).decode(errors="replace")[:300]
            if response.status_code not in _REFUSED:
                raise Failed(f"status {response.status_code}: {text}")
            await asyncio.sleep(float(response.headers.get("retry-after", "1")))
        raise Failed(f"refused {_MAX_REFUSALS} times: {text}")

    async def _read(self, response: httpx2.Response) -> _Stream:
        stream, last_s = _Stream(), time.monotonic()
        self.num_live += 1
        try:
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    pause = Pause(last_s, time.monotonic(), stream.has_text)
                    stream.add(line[5:].strip())
                    last_s = pause.end_s
                    if pause.seconds >= PAUSE_S:
                        stream.pauses.append(pause)
        finally:
            self.num_live -= 1
        if stream.error:
            raise Failed(stream.error)
        if not stream.done:
            raise httpx2.RemoteProtocolError("the stream ended without its last event")
        return stream
