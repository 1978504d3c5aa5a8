"""What a chat completion becomes: its prompt in parts, and where each value of its sampling comes from."""

from __future__ import annotations

from typing import Any

import httpx2

from tests.fakes.http_worker import http_worker, run
from tests.integration.httpserver.test_chat import HELLO

PATH = "/v1/chat/completions/render"


def _render(**fields: Any) -> dict[str, Any]:
    async def test() -> dict[str, Any]:
        async with http_worker() as worker, httpx2.AsyncClient(base_url=worker.url) as http:
            answer = await http.post(PATH, json={"model": "stub", "messages": HELLO, **fields})
            await worker.idle()
            assert not worker.upstream.received
            return {"status": answer.status_code, **answer.json()}

    return run(test)


def test_sources_of_sampling_are_named() -> None:
    found = _render(temperature=0.5, max_completion_tokens=7, top_p=None)
    sampling = {name: (one["value"], one["source"]) for name, one in found["sampling"].items()}
    assert sampling["temperature"] == (0.5, "request")
    assert sampling["max_tokens"] == (7, "request")
    assert sampling["top_p"][1] == "default"
    assert sampling["seed"] == (None, "default")
    assert sampling["grammar"] == (False, "default")


def test_without_a_limit_the_answer_may_fill_the_context() -> None:
    found = _render(seed=3)
    assert found["sampling"]["max_tokens"]["value"] == found["max_model_len"] - found["num_tokens"]
    assert found["sampling"]["seed"] == {"value": 3, "source": "request"}
    assert found["num_tokens"] == len(found["token_ids"]) == sum(part["tokens"] for part in found["parts"])


def test_what_would_be_refused_is_refused() -> None:
    found = _render(temperature=9)
    assert found["status"] == 400
    assert found["error"]["param"] == "temperature"
