"""What the engine is asked for by calls that want no answer, or something of their prompts besides."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from mmserve.httpserver.call import GenerateCall, Prompt
from mmserve.httpserver.output.answer_delta import AnswerDelta
from mmserve.httpserver.output.answer_format import AnswerFormat
from mmserve.httpserver.output.deltas import DeltaStream
from mmserve.httpserver.output.parsing.formats import Format
from mmserve.httpserver.output.render_turns import RenderTurns
from mmserve.httpserver.output.vocabulary import Vocabulary
from mmserve.httpserver.request.path import RequestPath
from mmserve.messages.logprobs import pack
from mmserve.messages.reply import TokenReply
from mmserve.messages.request import GenerateRequest
from mmserve.messages.sampling import SamplingParams
from mmserve.runtime.errors import ContextLengthExceeded
from tests.fakes.http.http_services import byte_tokenizer
from tests.fakes.processes.samples import Samples
from tests.fakes.ranks.calls import generate_call

CONTEXT = 3


class _Engine:
    """Ends each sequence with its prompt; a scored one has a row first."""

    def __init__(self) -> None:
        self.requests: list[GenerateRequest] = []

    @asynccontextmanager
    async def submit(self, request: GenerateRequest) -> AsyncIterator[AsyncIterator[TokenReply]]:
        self.requests.append(request)
        yield self._replies(request)

    async def _replies(self, request: GenerateRequest) -> AsyncIterator[TokenReply]:
        if request.sampling.prompt_logprobs is not None:
            yield TokenReply(id=request.id, prompt_logprobs=pack([(97, -1.0)]))
        yield TokenReply(id=request.id, finish="length", embedding=b"1234" if request.pooling else b"")


def run(call: GenerateCall, prompt_tokens: int = 2) -> tuple[list[GenerateRequest], list[AnswerDelta]]:
    """The sequences that the engine is sent, and the deltas of the answer."""
    engine, nothing = _Engine(), SimpleNamespace(choose=lambda: None, hold=lambda nbytes: None)
    prompts = SimpleNamespace(build=lambda *_: Prompt(array("q", [97] * prompt_tokens)))
    services: dict[str, Any] = {
        "alloc_paths": nothing,
        "prompts": prompts,
        "prompt_threads": None,
        "dispatcher": engine,
        "grammars": None,
    }
    vocabulary, metrics = Vocabulary(byte_tokenizer()), Samples()
    services |= {"answer_format": AnswerFormat(Format(), vocabulary), "eos_token_ids": ()}
    path = RequestPath(0, CONTEXT, 0, **services, vocabulary=vocabulary, metrics=metrics)  # type: ignore[arg-type]

    async def serve() -> list[AnswerDelta]:
        deltas = DeltaStream(call.n, RenderTurns())
        await path.generate(call, deltas, nothing)  # type: ignore[arg-type]
        return [delta async for delta in deltas]

    return engine.requests, asyncio.run(serve())


def test_a_prompt_is_scored_once_for_all_of_its_choices() -> None:
    sampling = SamplingParams(max_tokens=0, min_tokens=2, prompt_logprobs=0)
    requests, deltas = run(generate_call(sampling=sampling, prompt_only=True, n=2, priority=7))
    assert [request.sampling.prompt_logprobs for request in requests] == [0, None]
    assert {(request.sampling.max_tokens, request.sampling.min_tokens) for request in requests} == {(0, 0)}
    assert {request.priority for request in requests} == {7}
    entries = {delta.index: delta.prompt_logprobs for delta in deltas}
    first, second = entries[0]
    assert (first, entries[1]) == (None, ())
    assert second is not None
    assert second.decode()[0].logprob == -1.0


def test_an_embedding_is_the_answer() -> None:
    requests, deltas = run(generate_call(prompt_only=True, pooling=True))
    assert [request.pooling for request in requests] == [True]
    assert [delta.embedding for delta in deltas] == [b"1234"]


def test_only_an_answer_needs_room_behind_its_prompt() -> None:
    run(generate_call(prompt_only=True), prompt_tokens=CONTEXT)
    for prompt_only, prompt_tokens in ((True, CONTEXT + 1), (False, CONTEXT)):
        with pytest.raises(ContextLengthExceeded):
            run(generate_call(prompt_only=prompt_only), prompt_tokens)
