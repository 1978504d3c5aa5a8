"""Several API keys from a file: what each opens, and how it shows in metrics and logs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.fakes.http.http_upstream import say
from tests.fakes.http.http_worker import Worker, http_worker, run
from tests.fakes.processes.samples import Samples
from tests.integration.httpserver.protocols.test_chat import HELLO

KEYS = "alice alice-s3cret\nprometheus prom-s3cret metrics\noperator ops-s3cret admin\n"
ALLOC = "/admin/alloc"
PROMPTS: dict[str, dict[str, Any]] = {"/v1/chat/completions": {"messages": HELLO}, "/v1/responses": {"input": "hi"}}


def test_each_key_opens_its_areas_and_is_counted_by_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "keys").write_text(KEYS)
    opens = {"alice-s3cret": "/v1/models", "prom-s3cret": "/metrics", "ops-s3cret": ALLOC}

    async def test() -> None:
        async with http_worker(api_key_file=str(tmp_path / "keys"), enable_admin=True) as worker:
            samples = Samples()
            worker.context.metrics.add = samples.add  # type: ignore[method-assign]
            for key, own in opens.items():
                for path in opens.values():
                    status = await _status(worker, path, key)
                    assert (status == 403) == (path != own), (key, path, status)
            assert await _status(worker, ALLOC, "wrong-s3cret") == 401
            assert samples.total("http_requests_by_key", "alice", "200") == 1
            assert samples.total("http_requests_by_key", "operator", "200") == 1
            assert samples.total("http_requests", "other", "403") == 6
            assert "s3cret" not in repr(samples.recorded)

    with caplog.at_level(logging.DEBUG):
        run(test)
    assert "'/v1/models': 200" in caplog.text
    assert "key alice" in caplog.text
    assert "s3cret" not in caplog.text


def test_keys_that_may_ask_have_caches_of_their_own_and_no_key_shows_in_what_the_engine_gets(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice alice-s3cret\nbob bob-s3cret\n")

    async def test() -> None:
        async with http_worker(api_key_file=str(tmp_path / "keys")) as worker:
            worker.upstream.behave = say("hello")
            async with httpx2.AsyncClient(base_url=worker.url, timeout=20) as client:
                for key in ("alice-s3cret", "bob-s3cret", "alice-s3cret"):
                    for path, body in PROMPTS.items():
                        headers = {"authorization": f"Bearer {key}"}
                        answer = await client.post(path, json={"model": "stub"} | body, headers=headers)
                        assert answer.status_code == 200
            salts = [request.cache_salt for request in worker.upstream.requests()]
            alice, bob = salts[0], salts[2]
            assert salts == [alice, alice, bob, bob, alice, alice]
            assert alice != bob
            assert not any(word in salt for salt in (alice, bob) for word in ("alice", "bob", "s3cret"))

    run(test)


async def _status(worker: Worker, path: str, key: str) -> int:
    async with httpx2.AsyncClient(base_url=worker.url, headers={"x-api-key": key}, timeout=20) as http:
        return (await http.get(path)).status_code
