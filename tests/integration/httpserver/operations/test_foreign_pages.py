"""What a web page of another site can make a browser send to a server: forged Host and Origin, forms, CORS."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2

from tests.fakes.http.http_upstream import say
from tests.fakes.http.http_worker import Worker, http_worker, run
from tests.integration.httpserver.protocols.test_chat import HELLO

CHAT, ALLOC = "/v1/chat/completions", "/admin/alloc"
FRACTION = "concurrent_alloc_fraction"
EVIL = "http://evil.example"


async def _send(worker: Worker, method: str, path: str, **more: Any) -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=worker.url, timeout=20) as http:
        return await http.request(method, path, **more)


def test_a_foreign_page_changes_nothing_and_generates_nothing() -> None:
    chat = {"model": "stub", "messages": HELLO}
    forged: list[dict[str, Any]] = [
        {"headers": {"host": "evil.example"}},
        {"headers": {"host": "evil.example", "origin": EVIL}},
        {"headers": {"origin": EVIL}},
        {"headers": {"origin": "null"}},
    ]

    async def test() -> None:
        async with http_worker(enable_admin=True) as worker:
            worker.upstream.behave = say("fine")
            for path, body in ((ALLOC, {FRACTION: 0}), (CHAT, chat)):
                for each in forged:
                    refused = await _send(worker, "POST", path, json=body, **each)
                    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "forbidden")
                for type_ in ("text/plain", "application/x-www-form-urlencoded", ""):
                    refused = await _send(worker, "POST", path, json=body, headers={"content-type": type_})
                    assert (refused.status_code, refused.json()["error"]["code"]) == (415, "unsupported_media_type")
            for path in ("/metrics", "/v1/models", "/docs", "/openapi.json"):
                assert (await _send(worker, "GET", path, headers={"host": "evil.example"})).status_code == 403
            for path in ("/health", "/live", "/ready"):
                assert (await _send(worker, "GET", path, headers={"host": "balancer"})).status_code == 200
            assert (await _send(worker, "GET", ALLOC)).json() == {FRACTION: 1.0}
            assert not worker.upstream.requests()
            own = {"origin": worker.url}
            assert (await _send(worker, "POST", CHAT, json=chat, headers=own)).status_code == 200

    run(test)


def test_with_a_key_host_and_origin_do_not_matter_and_json_still_does() -> None:
    async def test() -> None:
        async with http_worker(api_key="secret") as worker:
            worker.upstream.behave = say("fine")
            headers = {"host": "models.example", "origin": "app://desktop", "x-api-key": "secret"}
            assert (
                await _send(worker, "POST", CHAT, json={"model": "stub", "messages": HELLO}, headers=headers)
            ).status_code == 200
            headers["content-type"] = "text/plain"
            assert (
                await _send(worker, "POST", CHAT, json={"model": "stub", "messages": HELLO}, headers=headers)
            ).status_code == 415

    run(test)


def test_cors_headers_are_sent_to_listed_origins_alone() -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}

    async def test() -> None:
        async with http_worker() as closed:
            preflight = await _send(closed, "OPTIONS", CHAT, headers={"origin": EVIL} | asked)
            assert preflight.status_code == 403
            assert not [name for name in preflight.headers if name.startswith("access-control")]
        async with http_worker(api_key="secret", allowed_origins=("https://app.example",)) as worker:
            worker.upstream.behave = say("fine")
            own = {"origin": "https://app.example"}
            preflight = await _send(worker, "OPTIONS", CHAT, headers=own | asked)
            assert preflight.status_code == 200
            assert preflight.headers["access-control-allow-origin"] == own["origin"]
            assert "authorization" in preflight.headers["access-control-allow-headers"]
            for key, status in (("secret", 200), ("wrong", 401)):
                answer = await _send(
                    worker, "POST", CHAT, json={"model": "stub", "messages": HELLO}, headers=own | {"x-api-key": key}
                )
                assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, own["origin"])
            assert (await _send(worker, "OPTIONS", CHAT, headers={"origin": EVIL} | asked)).status_code == 400
            foreign = await _send(worker, "GET", "/v1/models", headers={"origin": EVIL, "x-api-key": "secret"})
            assert "access-control-allow-origin" not in foreign.headers

    run(test)


def test_a_request_with_two_hosts_is_refused() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            reader, writer = await asyncio.open_connection("127.0.0.1", worker.port)
            writer.write(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n")
            assert b" 400 " in await reader.readline()
            writer.close()

    run(test)
