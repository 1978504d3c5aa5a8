"""Metrics that a worker sends about its requests; every sample is of a declared metric."""

from __future__ import annotations

import httpx2

from mmserve.monitoring.metrics.store import read_all
from tests.fakes.http.http_worker import Worker, http_worker, run
from tests.fakes.processes.samples import counted
from tests.integration.httpserver.protocols.test_chat import HELLO, PICTURE


def _observations(worker: Worker) -> dict[tuple[str, ...], float]:
    """How many values each histogram has observed."""
    (stored,) = read_all(worker.context.endpoints.metrics)
    return {(name, *labels): sum(values[:-1]) for (name, labels), values in stored.values.items()}


async def _use(worker: Worker) -> None:
    async with worker.client() as client, httpx2.AsyncClient(base_url=worker.url) as http:
        await client.chat.completions.create(model="stub", messages=HELLO)
        await client.chat.completions.create(model="stub", messages=PICTURE, max_tokens=2, n=2)
        await http.get("/v1/models/stub")
        await http.get("/nothing")
        await http.post("/v1/chat/completions", content=b"{", headers={"content-type": "application/json"})


def test_requests_are_counted_by_route_and_finish_and_timed_from_arrival() -> None:
    async def test() -> None:
        async with http_worker() as worker:
            await _use(worker)
            await worker.idle()
            found = counted(worker.context.endpoints)
            counts = _observations(worker)
        assert found["http_requests", "/v1/chat/completions", "400"] == 1
        assert found["http_requests", "/v1/chat/completions", "200"] == 2
        assert found["http_requests", "/v1/models/{model_id:path}", "200"] == 1
        assert found["http_requests", "other", "404"] == 1
        assert found["request_success", "stop"] == 1
        assert found["request_success", "length"] == 2
        assert counts["time_to_first_token_seconds", "text"] == 1
        assert counts["time_to_first_token_seconds", "image"] == 2
        assert found["generation_tokens",] == 5 + 2 * 2
        assert found["prompt_tokens",] == 2 + 4 + len("what ?")
        assert (counts["request_params_n",], found["request_params_n",]) == (2, 1 + 2)
        assert found["num_requests_in_flight",] == 0

    run(test)
