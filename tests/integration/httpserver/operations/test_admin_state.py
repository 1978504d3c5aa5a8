"""``/admin/state`` at a real worker: once, as events, and when the metrics server is gone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2
import msgspec
import pytest

from mmserve.httpserver.api.admin import state as state_module
from mmserve.ipc.status_http import Page, serving_pages
from mmserve.messages.server_state import ArenaState, HistoryPoint, LastHour, Latency, Load, ServerState
from tests.fakes.http.http_upstream import TIMEOUT_S
from tests.fakes.http.http_worker import Worker, http_worker, run

STATE, EVENTS = "/admin/state", "/admin/state/events"
ARENA = ArenaState(
    nbytes=100,
    num_extents=0,
    num_leases=0,
    num_holes=1,
    free_nbytes=100,
    largest_hole_nbytes=100,
    cell_nbytes=0,
    extents=(),
)
LOAD = Load(**dict.fromkeys(Load.__struct_fields__, 0))


@dataclass
class MetricsServer:
    """Answers for the metrics server: at each question the time is a second later, and one point is new."""

    asked: list[str] = field(default_factory=list)
    arena: ArenaState = ARENA
    breaks: bool = False

    def page(self, path: str) -> Page:
        self.asked.append(path)
        if self.breaks:
            return Page(b'{"error": "internal server error"}', 500)
        time_s = 1000.0 + len(self.asked)
        hour = LastHour(
            seconds=1,
            prompt_tokens=0,
            generation_tokens=0,
            ttft=Latency(),
            itl=Latency(),
            e2e=Latency(),
            stages={},
            arms={},
        )
        state = ServerState(
            time_s=time_s,
            phase="ready",
            detail="",
            reasons=(),
            uptime_s=1.0,
            processes=(),
            load=LOAD,
            requests=(),
            last_hour=hour,
            history=(HistoryPoint(time_s=time_s, seconds=1.0),),
            arena=self.arena,
            missing=(),
        )
        return Page(msgspec.json.encode(state))


@contextmanager
def metrics_of(worker: Worker) -> Iterator[MetricsServer]:
    server = MetricsServer()
    with serving_pages(worker.context.endpoints.metrics_http, server.page):
        yield server


@asynccontextmanager
async def serving(**config: Any) -> AsyncIterator[tuple[Worker, MetricsServer, httpx2.AsyncClient]]:
    async with http_worker(enable_admin=True, **config) as worker:
        with metrics_of(worker) as metrics:
            async with httpx2.AsyncClient(base_url=worker.url, timeout=20) as http:
                yield worker, metrics, http


async def _events(answer: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            yield msgspec.json.decode(line.removeprefix("data: "))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "_INTERVAL_S", 0.01)


def test_the_state_has_the_model_and_the_switch() -> None:
    async def test() -> None:
        async with serving() as (worker, metrics, http):
            worker.context.alloc_paths.split.fraction = 0.25
            state = (await http.get(STATE, params={"after": "12.5"})).json()
            assert state["alloc"] == {"has_v2": True, "concurrent_alloc_fraction": 0.25}
            assert (state["model"], state["phase"]) == (worker.context.model.name, "ready")
            assert state["arena"]["free_nbytes"] == 100
            assert metrics.asked == ["/state/after/12.5"]

    run(test)


@pytest.mark.usefixtures("quick")
def test_events_have_what_is_new_and_the_arena_when_it_has_changed() -> None:
    async def test() -> None:
        async with serving() as (_, metrics, http), http.stream("GET", EVENTS) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            events = _events(answer)
            first, second = await anext(events), await anext(events)
            assert first["arena"]["nbytes"] == 100
            assert "arena" not in second
            assert metrics.asked[:2] == ["/state/after/0.0", f"/state/after/{first['history'][-1]['time_s']}"]
            metrics.arena = msgspec.structs.replace(ARENA, num_leases=4)
            async for event in events:
                if "arena" in event:
                    break
            assert event["arena"]["num_leases"] == 4

    run(test)


@pytest.mark.usefixtures("quick")
def test_a_stream_ends_when_its_client_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "_MAX_STREAMS", 1)

    async def status(http: httpx2.AsyncClient) -> int:
        async with http.stream("GET", EVENTS) as answer:
            return answer.status_code

    async def test() -> None:
        async with serving() as (_, _, http):
            assert await status(http) == 200
            async with asyncio.timeout(TIMEOUT_S):
                while await status(http) == 503:  # noqa: ASYNC110 - the server has no event for it
                    await asyncio.sleep(0.01)

    run(test)


@pytest.mark.usefixtures("quick")
def test_a_stream_outlasts_a_restart_of_the_metrics_server() -> None:
    async def test() -> None:
        async with serving() as (worker, metrics, http), http.stream("GET", EVENTS) as answer:
            events = _events(answer)
            await anext(events)
            metrics.breaks = True
            asked = len(metrics.asked)
            await worker.until(lambda: len(metrics.asked) > asked + 1)
            metrics.breaks = False
            assert (await anext(events))["phase"] == "ready"

    run(test)


def test_without_the_metrics_server_the_answer_is_503() -> None:
    async def test() -> None:
        async with http_worker(enable_admin=True) as worker, httpx2.AsyncClient(base_url=worker.url) as http:
            for path in (STATE, EVENTS):
                answer = await http.get(path)
                assert answer.status_code == 503
                assert answer.json()["error"]["message"] == "the metrics server does not answer"

    run(test)


@pytest.mark.parametrize(
    ("query", "param"), [("after=x", "after"), ("after=-1", "after"), ("after=nan", "after"), ("since=1", "since")]
)
def test_a_wrong_query_is_refused_by_name(query: str, param: str) -> None:
    async def test() -> None:
        async with serving() as (_, metrics, http):
            for path in (STATE, EVENTS):
                answer = await http.get(f"{path}?{query}")
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
            assert not metrics.asked

    run(test)


@pytest.mark.usefixtures("quick")
def test_one_worker_has_few_streams_and_ends_them_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "_MAX_STREAMS", 1)

    async def test() -> None:
        async with serving() as (worker, _, http), http.stream("GET", EVENTS) as answer:
            events = _events(answer)
            await anext(events)
            refused = await http.get(EVENTS)
            assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
            os.kill(os.getpid(), signal.SIGTERM)
            async for _ in events:
                pass
            await worker.serving

    run(test)


@pytest.mark.usefixtures("quick")
def test_a_stream_ends_so_that_a_worker_can_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "_STREAM_S", 0.05)

    async def test() -> None:
        async with serving() as (_, _, http):
            async with http.stream("GET", EVENTS) as answer:
                assert [event async for event in _events(answer)]
            async with http.stream("GET", EVENTS) as answer:
                assert await anext(_events(answer))

    run(test)


def test_it_needs_the_option_and_the_key() -> None:
    async def test() -> None:
        async with http_worker() as worker, httpx2.AsyncClient(base_url=worker.url) as http:
            assert (await http.get(STATE)).status_code == 404
        async with serving(api_key="secret") as (_, metrics, http):
            for path in (STATE, EVENTS):
                assert (await http.get(path)).status_code == 401
                assert (await http.get(path, headers={"x-api-key": "wrong"})).status_code == 401
            assert not metrics.asked
            assert (await http.get(STATE, headers={"x-api-key": "secret"})).status_code == 200

    run(test)
