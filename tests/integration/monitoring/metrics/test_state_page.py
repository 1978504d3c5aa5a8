"""The server's state, made from metrics of processes, the health server's report and the cache server's arena."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass

import msgspec
import pytest

from mmserve.cache_server.arena_drawing import draw
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.ipc.status_client import read_page
from mmserve.ipc.status_http import Page, serving_pages
from mmserve.messages.reply import ServerPhase
from mmserve.messages.server_state import MAX_REQUESTS, RequestState, ServerState
from mmserve.messages.status import ProcessRow, ProcessTable
from mmserve.monitoring.health.run import HealthCollector, serving_probes
from mmserve.monitoring.metrics import state_page
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.monitoring.metrics.memory import Memory, ProcessMemory
from mmserve.monitoring.metrics.run import serving_metrics
from mmserve.monitoring.metrics.series import Series
from mmserve.monitoring.metrics.state_page import StatePage

ROWS = (
    ProcessRow("router-0", "router", "engine", 41, 1.0, 2.0, 2),
    ProcessRow("httpserver-0", "httpserver 0", "httpserver 0", os.getpid(), 1.0, 2.0, 0),
)


@dataclass
class Clock:
    """Both clocks of the page's module."""

    now_s: float = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return 1e9 + self.now_s


class StubMemory(ProcessMemory):
    """Counts how often memory is read."""

    def __init__(self) -> None:
        super().__init__(root_pid=1)
        self.reads = 0

    def read(self) -> Iterator[Memory]:
        self.reads += 1
        yield Memory("router", 30, 20)


class Server:
    """The metrics server's page, and the processes that it asks."""

    def __init__(self, endpoints: Endpoints, stack: ExitStack, clock: Clock) -> None:
        self.endpoints, self.clock = endpoints, clock
        self.router = stack.enter_context(closing(MetricsClient(endpoints, "router-0")))
        self.memory = StubMemory()
        self.arena_reads = 0
        self.state_page = StatePage(endpoints, self.memory, slots=8, http_endpoints=3)
        self._stack = stack
        stack.enter_context(serving_metrics(endpoints.metrics_http, Series(endpoints.metrics), state=self.state_page))

    def start_others(self) -> None:
        listener = self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.endpoints.health_url.write_text(f"http://127.0.0.1:{listener.getsockname()[1]}")
        collector = HealthCollector(self.endpoints)
        collector.apply(ServerPhase(phase="restarting", ready=False, detail="engine"))
        collector.apply(ProcessTable(supervisor_pid=40, started_s=0.0, processes=ROWS))
        self._stack.enter_context(serving_probes(listener, collector))
        self._stack.enter_context(serving_pages(self.endpoints.cache_http, self._arena))

    def enter(self, context: AbstractContextManager[None]) -> None:
        self._stack.enter_context(context)

    def sample(self, seconds: float = 5.0) -> None:
        self.clock.now_s += seconds
        self.state_page.sample()

    def state(self, path: str = "/state") -> ServerState:
        page = read_page(self.endpoints.metrics_http, path, 10)
        assert page is not None
        return msgspec.json.decode(page, type=ServerState)

    def _arena(self, path: str) -> Page | None:
        self.arena_reads += 1
        return Page(msgspec.json.encode(draw(1000, 3, [], [(0, 1000)]))) if path == "/arena" else None


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    clock = Clock()
    monkeypatch.setattr(state_page, "time", clock)
    with tempfile.TemporaryDirectory(dir="/tmp") as run_dir, ExitStack() as stack:
        yield Server(Endpoints(run_dir), stack, clock)


def test_the_state_has_what_each_process_knows(server: Server) -> None:
    server.start_others()
    server.router.add("num_requests_waiting", 3)
    server.router.add("kv_blocks", 5, "held")
    state = server.state()
    assert (state.phase, state.detail, state.missing) == ("restarting", "engine", ())
    supervisor, router, http = state.processes
    assert (supervisor.title, supervisor.pid) == ("supervisor", 40)
    assert (router.title, router.restarts, router.rss_bytes, router.pss_bytes) == ("router", 2, 30, 20)
    assert (http.pid, http.rss_bytes) == (os.getpid(), None)
    assert (state.load.sequences_waiting, state.load.kv_blocks_held, state.load.slots) == (3, 5, 8)
    assert state.arena is not None
    assert (state.arena.nbytes, state.arena.num_leases) == (1000, 3)


def _requests(name: str, ages_s: Iterable[float]) -> list[RequestState]:
    return [
        RequestState(id=f"{name}{age_s:g}", age_s=age_s, state="decoding", prompt_tokens=9, output_tokens=1, images=0)
        for age_s in ages_s
    ]


def _serve_requests(server: Server, worker: int, rows: list[RequestState] | None) -> None:
    page = Page(b"{}", 500) if rows is None else Page(msgspec.json.encode(rows))
    server.enter(serving_pages(server.endpoints.requests_http(worker), lambda path: page))


def test_the_oldest_requests_of_all_workers_come_first_and_are_few(server: Server) -> None:
    _serve_requests(server, 0, _requests("a", (3.0, 1.0)))
    _serve_requests(server, 2, _requests("c", (9.0, *(2.0 + number / 1000 for number in range(MAX_REQUESTS)))))
    state = server.state()
    assert [row.id for row in state.requests[:2]] == ["c9", "a3"]
    assert len(state.requests) == MAX_REQUESTS
    assert "a1" not in {row.id for row in state.requests}
    assert "requests" not in state.missing


def test_all_workers_are_asked_before_the_first_answer(server: Server) -> None:
    both = threading.Barrier(2)

    def page(path: str) -> Page:
        both.wait(20)
        return Page(msgspec.json.encode(_requests("a", (1.0,))))

    for worker in (0, 1):
        server.enter(serving_pages(server.endpoints.requests_http(worker), page))
    assert len(server.state().requests) == 2


def test_a_worker_that_does_not_tell_its_requests_is_noticed(server: Server) -> None:
    _serve_requests(server, 1, None)
    state = server.state()
    assert state.requests == ()
    assert "requests" in state.missing


def test_processes_that_do_not_answer_are_named(server: Server) -> None:
    state = server.state()
    assert (state.phase, state.processes, state.arena) == ("unknown", (), None)
    assert state.missing == ("processes", "arena")


def test_the_history_has_rates_percentiles_and_arms(server: Server) -> None:
    server.state_page.sample()
    server.router.add("generation_tokens", 50)
    for seconds in (0.02, 0.03, 0.3):
        server.router.add("time_to_first_token_seconds", seconds, "image")
    server.router.add("mm_alloc_seconds", 0.001, "v2")
    server.router.add("mm_items", 2, "hit", "v2")
    server.router.add("mm_items", 1, "write", "v2")
    server.sample()
    server.sample()
    first, second = server.state().history
    assert (first.seconds, first.generation_tokens, first.requests) == (5, 50, 3)
    assert first.ttft_p50_s is not None
    assert 0.02 <= first.ttft_p50_s <= 0.04
    assert (second.generation_tokens, second.ttft_p50_s) == (0, None)
    assert server.state(f"/state/after/{first.time_s}").history == (second,)
    hour = server.state().last_hour
    assert (hour.seconds, hour.generation_tokens, hour.ttft.count) == (10, 50, 3)
    v1, v2 = hour.arms["v1"], hour.arms["v2"]
    assert (v1.requests, v2.requests, v2.images, v2.cached_images) == (0, 1, 3, 2)
    assert v2.stages["alloc"].count == 1


def test_the_last_hour_ends_now_and_not_at_the_last_sample(server: Server) -> None:
    server.state_page.sample()
    server.router.add("prompt_tokens", 7)
    assert server.state().last_hour.prompt_tokens == 7


def test_samples_are_taken_every_few_seconds(server: Server) -> None:
    server.state_page.sample()
    for _ in range(9):
        server.sample(1.0)
    assert len(server.state().history) == 1


def test_many_readers_see_one_state_for_which_others_are_asked_once(server: Server) -> None:
    server.start_others()
    server.state_page.sample()
    states = [server.state() for _ in range(3)]
    server.router.add("num_requests_waiting", 3)
    assert [*states, server.state()] == 4 * [states[0]]
    assert (server.arena_reads, server.memory.reads) == (1, 1)
    server.clock.now_s += 1
    assert server.state().load.sequences_waiting == 3
    assert (server.arena_reads, server.memory.reads) == (2, 1), "memory is read less often"


def test_nobody_is_asked_while_nobody_looks(server: Server) -> None:
    server.start_others()
    server.sample()
    server.sample()
    assert (server.arena_reads, server.memory.reads) == (0, 0)


@pytest.mark.parametrize("path", ["/state/", "/state/after/", "/state/after/x", "/states"])
def test_other_paths_are_not_there(server: Server, path: str) -> None:
    page = read_page(server.endpoints.metrics_http, path, 10)
    assert page == b'{"error": "not found"}'
