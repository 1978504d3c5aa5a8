"""Streams of several kinds at once, which a test disturbs half-way: each must have the text that it would have had."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import openai

from tests.e2e.stack import Stack
from training.sample import samples

TEXT = [{"role": "user", "content": "What can you do?"}]
PICTURES = [sample.messages for sample in itertools.islice(samples(2, 880_301, kinds=("colour", "word")), 2)]
LONG = {"max_tokens": 400, "extra_body": {"ignore_eos": True}}
REQUESTS: list[dict[str, Any]] = [
    {"messages": TEXT, "temperature": 0, **LONG},
    {"messages": TEXT, "temperature": 0.9, "seed": 11, **LONG},
    {"messages": TEXT, "temperature": 0.9, "seed": 12, "n": 3, **LONG},
    {"messages": TEXT, "temperature": 0.7, "seed": 13, "logprobs": True, "top_logprobs": 3, **LONG},
    {"messages": PICTURES[0], "temperature": 0, **LONG},
    {"messages": PICTURES[1], "temperature": 0.8, "seed": 14, "n": 2, "logprobs": True, **LONG},
    {
        "input": "What can you do?",
        "temperature": 0.9,
        "max_output_tokens": 400,
        "extra_body": {"ignore_eos": True, "seed": 15},
    },
]
"""Chat completions, and a response."""


class Answer:
    """The choices of one stream, by index: text, and (token, log-probability) pairs."""

    def __init__(self) -> None:
        self.texts: dict[int, str] = {}
        self.logprobs: dict[int, list[tuple[str, float]]] = {}

    def add(self, event: Any) -> None:
        for choice in event.choices:
            self.texts[choice.index] = self.texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.logprobs is not None and choice.logprobs.content:
                pairs = [(entry.token, round(entry.logprob, 3)) for entry in choice.logprobs.content]
                self.logprobs.setdefault(choice.index, []).extend(pairs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Answer) and (self.texts, self.logprobs) == (other.texts, other.logprobs)

    __hash__ = None  # type: ignore[assignment]


async def response_of(client: openai.AsyncOpenAI, request: dict[str, Any], started: asyncio.Event) -> Answer:
    """Its events must have numbers without a gap."""
    answer, number = Answer(), 0
    async for event in await client.responses.create(model="llava", stream=True, **request):
        assert event.sequence_number == number, (event, number)
        number += 1
        if event.type == "response.output_text.delta":
            answer.texts[0] = answer.texts.get(0, "") + event.delta
            started.set()
    return answer


async def answer_of(client: openai.AsyncOpenAI, request: dict[str, Any], started: asyncio.Event) -> Answer:
    if "input" in request:
        return await response_of(client, request, started)
    answer = Answer()
    async for event in await client.chat.completions.create(model="llava", stream=True, **request):
        answer.add(event)
        if any(answer.texts.values()):
            started.set()
    return answer


async def answers_of(stack: Stack, disturb: Any = None, times: int = 1) -> list[Answer]:
    """The answers to all requests at once, each of which is sent so many times. ``disturb`` is called when all have
    text."""
    requests = REQUESTS * times
    async with stack.async_client() as client:
        started = [asyncio.Event() for _ in requests]
        live = [
            asyncio.create_task(answer_of(client, request, event))
            for request, event in zip(requests, started, strict=True)
        ]
        if disturb is not None:
            await asyncio.gather(*(event.wait() for event in started))
            disturb()
        return await asyncio.gather(*live)
