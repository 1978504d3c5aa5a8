"""Embeddings through the OpenAI client, and the refusal of routes that would need a trained relevance score."""

from __future__ import annotations

import asyncio
import base64

import httpx2
import numpy as np
import openai
import pytest

from mmserve.httpserver.api.relevance import PATHS
from mmserve.messages.request import GenerateRequest
from tests.fakes.http.http_upstream import Upstream
from tests.fakes.http.http_worker import http_worker, run
from tests.integration.httpserver.protocols.test_chat import PICTURE


async def embed(upstream: Upstream, request: GenerateRequest) -> None:
    """The vector (length of the prompt, 1); shorter prompts later."""
    length = len(request.prompt_ids) // 8
    await asyncio.sleep(0.01 / length)
    upstream.reply(request, finish="length", embedding=np.array([length, 1], "<f4").tobytes())


@pytest.mark.parametrize("form", ["float", "base64", None])
def test_vectors_come_in_the_order_of_their_inputs(form: str | None) -> None:
    async def test() -> None:
        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = embed
            options = {} if form is None else {"encoding_format": form}
            answer = await client.embeddings.create(model="stub", input=["a", "bcd", "ef"], **options)  # type: ignore[arg-type]
            assert [one.index for one in answer.data] == [0, 1, 2]
            for one, length in zip(answer.data, (1, 3, 2), strict=True):
                vector = np.array(one.embedding) if form != "base64" else np.frombuffer(_decoded(one.embedding), "<f4")
                assert vector == pytest.approx(np.array([length, 1]) / np.hypot(length, 1))
            assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (6, 6)
            assert [request.pooling for request in worker.upstream.requests()] == [True] * 3
            await worker.idle()

    run(test)


def _decoded(value: object) -> bytes:
    assert isinstance(value, str)
    return base64.b64decode(value)


def test_a_picture_has_a_vector() -> None:
    async def test() -> None:
        async with http_worker() as worker, httpx2.AsyncClient(base_url=worker.url) as http:
            worker.upstream.behave = embed
            answer = await http.post("/v1/embeddings", json={"messages": PICTURE})
            assert answer.status_code == 200
            assert len(answer.json()["data"]) == 1
            (request,) = worker.upstream.requests()
            assert (request.pooling, len(request.spans), request.sampling.max_tokens) == (True, 1, 0)
            assert worker.leases.released == worker.leases.held != []
            await worker.idle()

    run(test)


def test_a_failure_has_its_status() -> None:
    async def test() -> None:
        async def fail(upstream: Upstream, request: GenerateRequest) -> None:
            upstream.reply(request, finish="error", message="not finite")

        async with http_worker() as worker, worker.client() as client:
            worker.upstream.behave = fail
            with pytest.raises(openai.InternalServerError, match="not finite"):
                await client.embeddings.create(model="stub", input="a")
            with pytest.raises(openai.BadRequestError) as caught:
                await client.embeddings.create(model="stub", input="a", dimensions=3)
            assert caught.value.param == "dimensions"

    run(test)


def test_relevance_is_refused_with_the_reason() -> None:
    async def test() -> None:
        async with http_worker() as worker, httpx2.AsyncClient(base_url=worker.url) as http:
            for path in PATHS:
                answer = await http.post(path, json={"query": "a", "documents": ["b"]})
                assert answer.status_code == 400
                assert "without a trained relevance score" in answer.json()["error"]["message"]

    run(test)
