"""``response_format`` through a whole HTTP worker: what the engine gets, and which requests are refused."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import openai
import pytest

from mmserve.messages.request import GenerateRequest
from tests.fakes.http.http_services import EOS
from tests.fakes.http.http_upstream import TIMEOUT_S, Upstream
from tests.fakes.http.http_worker import Worker, http_worker, run
from tests.fakes.ranks.grammars import JSON, SCHEMA

HANGS = {"type": "integer", "multipleOf": 999_983}


async def ask(worker: Worker, schema: dict[str, Any] | None = None, **options: Any) -> openai.types.chat.ChatCompletion:
    if schema is not None:
        json_schema = {"name": "answer", "strict": True, "schema": schema}
        options["response_format"] = {"type": "json_schema", "json_schema": json_schema}
    async with worker.client() as client:
        return await client.chat.completions.create(
            model="stub", messages=[{"role": "user", "content": "hi"}], **options
        )


def test_the_engine_gets_the_grammar_which_decides_where_the_answer_ends() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            await ask(worker, SCHEMA, n=2, extra_body={"ignore_eos": True, "min_tokens": 3})
            requests = worker.upstream.requests()
            assert len(requests) == 2
            for request in requests:
                assert request.sampling.grammar == JSON
                assert (request.sampling.min_tokens, request.sampling.eos_token_ids) == (0, (EOS,))
            await worker.idle()

    run(test)


def test_a_schema_that_cannot_be_used_is_refused_by_field() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            for schema, reason in ((HANGS, "too complex"), ({"type": "array", "uniqueItems": True}, "uniqueItems")):
                with pytest.raises(openai.BadRequestError, match=reason) as refused:
                    await ask(worker, schema)
                assert refused.value.param == "response_format.json_schema.schema"
            await worker.idle()
            assert not worker.leases.held
            assert not worker.upstream.received

    run(test)


class Held:
    """A validator that holds back its answer about HANGS."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def error_of(self, grammar: str) -> str:
        if "multipleOf" not in grammar:
            return ""
        self.go_on.wait(TIMEOUT_S)
        return "it is too complex"

    def close(self) -> None:
        self.go_on.set()


def test_a_schema_that_takes_long_does_not_delay_others() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            checks, held = worker.context.request_tasks._generate.__self__.grammars, [Held(), Held()]  # type: ignore[attr-defined]
            checks._idle[:] = held
            hanging = asyncio.create_task(ask(worker, HANGS))
            await worker.until(lambda: len(checks._idle) == 1)
            for schema in (None, SCHEMA, {"type": "string"}):
                assert (await ask(worker, schema)).choices[0].message.content == "hello"
            assert not hanging.done()
            for each in held:
                each.go_on.set()
            with pytest.raises(openai.BadRequestError, match="too complex"):
                await hanging
            await worker.idle()

    run(test)


def test_a_grammar_that_the_engine_cannot_follow_is_an_error_of_its_own() -> None:
    async def fail(upstream: Upstream, request: GenerateRequest) -> None:
        upstream.reply(request, finish="grammar_error", message="why")

    async def test() -> None:
        async with http_worker() as worker:
            worker.upstream.behave = fail
            with pytest.raises(openai.InternalServerError, match="why") as failed:
                await ask(worker, SCHEMA)
            assert failed.value.code == "grammar_error"
            await worker.idle()

    run(test)
