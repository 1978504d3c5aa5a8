"""Known attacks on servers of this kind, tried on a whole HTTP worker. Names are the advisories' ids; see
docs/security.md for what mmserve does about each."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import pytest

from mmserve.httpserver.http.auth import OPEN_PATHS
from mmserve.messages.request import GenerateRequest
from tests.fakes.http.http_upstream import Upstream
from tests.fakes.http.http_worker import POST_CHAT, http_worker, run, status_line
from tests.integration.httpserver.protocols.test_chat import HELLO

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /live HTTP/1.1\r\nx-big: " + b"x" * 200_000,
        b"GET /live HTTP/1.1\r\n" + b"x-many: 1\r\n" * 1000 + b"\r\n",
        b"GET /" + b"x" * 200_000,
    ],
    ids=["one header", "many headers", "path"],
)
def test_cve_2025_48956_huge_heads_are_refused(head: bytes) -> None:
    async def test() -> None:
        async with http_worker() as worker:
            assert (await status_line(worker, head)).startswith(b"HTTP/1.1 431 ")
            assert (await status_line(worker, b"GET /live HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")

    run(test)


def test_pysec_2026_4361_every_path_but_the_probes_needs_the_key() -> None:
    async def test() -> None:
        async with http_worker(api_key="secret", enable_admin=True) as worker:
            headers = {"x-api-key": "secret"}
            async with httpx2.AsyncClient(base_url=worker.url, timeout=20) as http:
                paths = set((await http.get("/openapi.json", headers=headers)).json()["paths"])
                assert {CHAT, "/admin/alloc", "/metrics"} <= paths
                for path in {*paths, "/docs", "/openapi.json", "/tokenize", "/v2/x"} - OPEN_PATHS:
                    for method in ("GET", "POST", "PUT", "OPTIONS", "HEAD"):
                        assert (await http.request(method, path, json={})).status_code == 401, (method, path)

    run(test)


def test_cve_2026_94627_requests_with_one_x_request_id_do_not_meet() -> None:
    """Each answer repeats its own prompt, and the ids inside do not derive from the header."""

    async def echo(upstream: Upstream, request: GenerateRequest) -> None:
        await asyncio.sleep(0)
        upstream.reply(request, list(request.prompt_ids[::8]), finish="stop")

    async def test() -> None:
        async with http_worker() as worker:
            worker.upstream.behave = echo
            headers = {"x-request-id": "same"}
            async with httpx2.AsyncClient(base_url=worker.url, headers=headers, timeout=20) as http:
                texts = [f"tenant {number}" for number in range(16)]
                bodies = [{"model": "stub", "messages": [{"role": "user", "content": text}]} for text in texts]
                answers = await asyncio.gather(*(http.post(CHAT, json=body) for body in bodies))
            assert [each.json()["choices"][0]["message"]["content"] for each in answers] == texts
            assert {each.headers["x-request-id"] for each in answers} == {"same"}
            assert len({request.id for request in worker.upstream.requests()}) == len(texts)

    run(test)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"model": "stub", "messages": HELLO}),
        ("/v1/completions", {"model": "stub", "prompt": ["a text", "another"], "n": 2}),
        ("/v1/responses", {"model": "stub", "input": "a text", "store": False}),
        ("/v1/embeddings", {"input": "a text"}),
        ("/v1/messages", {"model": "stub", "messages": HELLO, "max_tokens": 8}),
    ],
)
def test_cve_2025_46570_a_salt_separates_prompts(path: str, body: dict[str, Any]) -> None:
    """The router looks for a prompt among those of its salt (tests/unit/router/scheduler/test_scheduler.py)."""

    async def answer(upstream: Upstream, request: GenerateRequest) -> None:
        await asyncio.sleep(0)
        vector = {"embedding": bytes(8)} if request.pooling else {}
        upstream.reply(request, [] if request.pooling else b"x", finish="length", **vector)

    async def test() -> None:
        async with http_worker() as worker, httpx2.AsyncClient(base_url=worker.url, timeout=20) as http:
            worker.upstream.behave = answer
            for salt in ({}, {"cache_salt": "tenant 7"}):
                answered = await http.post(path, json=body | salt)
                assert answered.status_code == 200, answered.text
                requests = worker.upstream.requests()
                assert {request.cache_salt for request in requests} == {"", *salt.values()}
            assert requests

    run(test)


@pytest.mark.parametrize(
    "forged",
    [
        {"chat_template": "{% for _ in range(10**9) %}{% endfor %}"},
        {"chat_template_kwargs": {"tokenize": False}},
        {"mm_hashes": ["00"]},
        {"prompt_embeds": "gASV"},
        {"multi_modal_data": {"image": {"handle": [0, 0, 1 << 40]}}},
    ],
    ids=lambda forged: next(iter(forged)),
)
def test_cve_2026_105754_forged_fields_are_refused_by_name(forged: dict[str, Any]) -> None:
    async def test() -> None:
        async with http_worker() as worker, httpx2.AsyncClient(base_url=worker.url, timeout=20) as http:
            refused = await http.post(CHAT, json={"model": "stub", "messages": HELLO} | forged)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"].startswith(next(iter(forged)))
            assert not worker.upstream.requests()

    run(test)


def test_deep_json_is_400_and_the_worker_lives() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            body = b'{"messages": ' + b"[" * 1_000_000
            head = POST_CHAT + b"content-length: %d\r\n\r\n" % len(body)
            assert (await status_line(worker, head + body)).startswith(b"HTTP/1.1 400 ")
            assert (await status_line(worker, b"GET /live HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200 ")

    run(test)


def test_two_lengths_or_a_length_and_chunks_are_refused() -> None:
    """Request smuggling: a proxy in front could read the other of the two."""
    body = json.dumps({"model": "stub", "messages": HELLO}).encode()

    async def test() -> None:
        async with http_worker() as worker:
            for framing in (
                b"content-length: 5\r\ncontent-length: %d\r\n\r\n" % len(body),
                b"content-length: %d\r\ntransfer-encoding: chunked\r\n\r\n" % len(body),
                b"content-length: +%d\r\n\r\n" % len(body),
            ):
                assert (await status_line(worker, POST_CHAT + framing + body)).startswith(b"HTTP/1.1 400 "), framing
            assert not worker.upstream.requests()

    run(test)
