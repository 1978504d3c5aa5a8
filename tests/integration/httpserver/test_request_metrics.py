"""Metrics that a worker sends about its requests; every sample is of a declared metric."""

from __future__ import annotations

import asyncio
from collections import defaultdict

import httpx2

from mmserve.ipc.channel import AsyncReceiver
from mmserve.messages.status import MetricBatch
from mmserve.metrics.names import METRICS
from tests.fakes.http_worker import Worker, http_worker, run
from tests.integration.httpserver.test_chat import HELLO, PICTURE

Samples = dict[tuple[str, tuple[str, ...]], list[float]]


async def _gather(receiver: AsyncReceiver[MetricBatch], samples: Samples) -> None:
    async for batch in receiver:
        for sample in batch.samples:
            assert len(METRICS[sample.name].labels) == len(sample.labels), sample
            samples[sample.name, sample.labels].append(sample.value)


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
            samples: Samples = defaultdict(list)
            receiver: AsyncReceiver[MetricBatch] = AsyncReceiver(worker.context.endpoints.metrics, MetricBatch)
            gathering = asyncio.create_task(_gather(receiver, samples))
            await _use(worker)
            worker.context.metrics.flush()
            await worker.until(lambda: len(samples["http_requests", ("/v1/chat/completions", "400")]) == 1)
            assert not gathering.done()
            gathering.cancel()
            receiver.close()
        assert len(samples["http_requests", ("/v1/chat/completions", "200")]) == 2
        assert len(samples["http_requests", ("/v1/models/{model_id:path}", "200")]) == 1
        assert len(samples["http_requests", ("other", "404")]) == 1
        assert len(samples["request_success", ("stop",)]) == 1
        assert len(samples["request_success", ("length",)]) == 2
        assert len(samples["time_to_first_token_seconds", ("text",)]) == 1
        assert len(samples["time_to_first_token_seconds", ("image",)]) == 2
        assert sum(samples["generation_tokens", ()]) == 5 + 2 * 2
        assert samples["prompt_tokens", ()] == [2, 4 + len("what ?")]
        assert samples["request_params_n", ()] == [1, 2]
        assert samples["num_requests_in_flight", ()][-1] == 0

    run(test)
