"""``response_format`` through a whole HTTP worker: what the engine gets, and which requests are refused."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

from mmserve.messages.request import GenerateRequest
from tests.fakes.grammars import JSON, SCHEMA
from tests.fakes.http_services import EOS
from tests.fakes.http_upstream import Upstream
from tests.fakes.http_worker import Worker, http_worker, run

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
            requests = [message for _, message in worker.upstream.received if isinstance(message, GenerateRequest)]
            assert len(requests) == 2
            for request in requests:
                assert request.sampling.grammar == JSON
                assert (request.sampling.min_tokens, request.sampling.stop_token_ids) == (0, (EOS,))
            await worker.idle()

    run(test)


def test_a_schema_that_cannot_be_used_is_refused_and_does_not_delay_others() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            await ask(worker, SCHEMA)  # its validator runs from here on
            hanging = asyncio.create_task(ask(worker, HANGS))
            await asyncio.sleep(0)
            for schema in (None, SCHEMA, {"type": "string"}):
                assert (await ask(worker, schema)).choices[0].message.content == "hello"
                assert not hanging.done()
            with pytest.raises(openai.BadRequestError, match="too complex") as refused:
                await hanging
            assert refused.value.param == "response_format.json_schema.schema"
            with pytest.raises(openai.BadRequestError, match="uniqueItems"):
                await ask(worker, {"type": "array", "uniqueItems": True})
            await worker.idle()
            assert not worker.leases.held

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
