"""What each fault of a node, a front or a cable costs the streams under way: failures, changed texts, pauses."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.load import report
from benchmarks.nodes.cluster import Cluster, cluster, metric
from benchmarks.nodes.namespaces import Network, network
from benchmarks.nodes.recovery import MOST, Recovery, recovery, undisturbed
from benchmarks.nodes.streams import Clients
from benchmarks.nodes.workload import streams
from mmserve.client.server_process import ServerProcess

NODES = 3
_VICTIM = 2
_OPTIONS = ("--kv-cache-gb", "0.2", "--mm-cache-gb", "0.05", "--cpu-threads", "1")
_FRONT_PORTS = (8101, 8102)
_CLIENTS, _BODIES, _TOKENS = 12, 23, 160
_WARMING_S, _BEFORE_S, _LASTS_S, _AFTER_S, _RECOVERS_S = 1.0, 5.0, 10.0, 5.0, 60.0
_LONGER_AFTER_S = {"slow": 30.0}
"""Where the rate comes back late."""
_LOSS = 0.02
_AWAY_S = 1.0
"""Until a service manager starts what was killed."""
_LOOK_S = 0.1


@dataclass
class Stage:
    """What events happen to."""

    cluster: Cluster
    fronts: dict[int, contextlib.ExitStack] = field(default_factory=dict)
    pids: dict[int, int] = field(default_factory=dict)

    @property
    def network(self) -> Network:
        return self.cluster.network

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in _FRONT_PORTS]

    def start_front(self, port: int) -> None:
        live = self.fronts[port] = contextlib.ExitStack()
        front: ServerProcess = live.enter_context(self.cluster.front(port=port))
        self.pids[port] = front.pid

    def kill_front(self, port: int) -> None:
        psutil.Process(self.pids[port]).kill()
        self.fronts.pop(port).close()

    def close(self) -> None:
        for live in self.fronts.values():
            live.close()


Begin = Callable[[Stage], None]


def _kill_node(stage: Stage) -> None:
    stage.cluster.kill(_VICTIM)
    time.sleep(_AWAY_S)
    stage.cluster.start(_VICTIM)


def _kill_front(stage: Stage) -> None:
    stage.kill_front(_FRONT_PORTS[0])
    time.sleep(_AWAY_S)
    stage.start_front(_FRONT_PORTS[0])


def _partition(stage: Stage) -> None:
    stage.network.plug(_VICTIM, connected=False)
    time.sleep(_LASTS_S)
    stage.network.plug(_VICTIM, connected=True)


def _slow(stage: Stage) -> None:
    stage.network.disturb(_VICTIM, milliseconds=100)
    time.sleep(_LASTS_S)
    stage.network.disturb(_VICTIM)


def _lossy(stage: Stage) -> None:
    stage.network.disturb(_VICTIM, loss=_LOSS)
    time.sleep(_LASTS_S)
    stage.network.disturb(_VICTIM)


def _full_disk(stage: Stage) -> None:
    stage.cluster.nodes[_VICTIM].fill_disk()
    time.sleep(_LASTS_S)
    stage.cluster.nodes[_VICTIM].empty_disk()


def _suspended(stage: Stage) -> None:
    processes = stage.cluster.nodes[_VICTIM].suspend()
    time.sleep(_LASTS_S)
    for each in processes:
        each.resume()


def _none(stage: Stage) -> None:
    time.sleep(_LASTS_S)


EVENTS: dict[str, Begin] = {
    "none": _none,
    "node": _kill_node,
    "front": _kill_front,
    "partition": _partition,
    "slow": _slow,
    "lossy": _lossy,
    "disk": _full_disk,
    "suspended": _suspended,
}
TITLES = {
    "none": "none",
    "node": "kill -9 of a node, started again 1 s later",
    "front": "kill -9 of one of two fronts, started again 1 s later",
    "partition": "a node's cable pulled for 10 s",
    "slow": "100 ms each way to a node for 10 s",
    "lossy": f"{_LOSS:.0%} of the packets to and from a node lost for 10 s",
    "disk": "a node's disk full for 10 s",
    "suspended": "a node's processes suspended (SIGSTOP) for 10 s",
}


@contextlib.contextmanager
def _stage(directory: Path) -> Iterator[Stage]:
    with contextlib.ExitStack() as stack:
        machines = stack.enter_context(network(NODES, delayed=(_VICTIM,)))
        stack.enter_context(machines.from_switch())
        stage = Stage(stack.enter_context(cluster(machines, directory, NODES, *_OPTIONS)))
        stack.callback(stage.close)
        for port in _FRONT_PORTS:
            stage.start_front(port)
        yield stage


@dataclass(frozen=True)
class _Course:
    """``busy``: streams at the victim when the event began; ``all_serve_s``: from its end until each node has answered
    a request."""

    busy: float
    lasted_s: float
    all_serve_s: float
    recovery: Recovery
    enough: float
    """For recovery, if nothing had happened."""


async def _disturbed(
    stage: Stage, name: str, clients: Clients, threads: ThreadPoolExecutor, enough: float = MOST
) -> _Course:
    loop, load = asyncio.get_running_loop(), asyncio.create_task(clients.run())
    try:
        await asyncio.sleep(_WARMING_S)
        before_s = time.perf_counter()
        await asyncio.sleep(_BEFORE_S)
        busy = await loop.run_in_executor(threads, _until_busy, stage.cluster.nodes[_VICTIM].url)
        begun_s = time.perf_counter()
        await loop.run_in_executor(threads, EVENTS[name], stage)
        ended_s = time.perf_counter()
        await loop.run_in_executor(threads, _until_all_serve, stage.cluster)
        all_serve_s = time.perf_counter() - ended_s
        await asyncio.sleep(_LONGER_AFTER_S.get(name, _AFTER_S))
        pieces_s, end_s = sorted(clients.pieces_s), time.perf_counter()
        found = recovery(pieces_s, before_s, begun_s, end_s, enough)
        return _Course(busy, ended_s - begun_s, all_serve_s, found, undisturbed(pieces_s, before_s, end_s))
    finally:
        clients.stop()
        await load


def _until_busy(url: str) -> float:
    """Until it has streams; how many."""
    deadline_s = time.monotonic() + _RECOVERS_S
    while not (count := metric(url, "num_requests_running")):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"no stream has come to {url}")
        time.sleep(_LOOK_S)
    return count


def _until_all_serve(made: Cluster) -> None:
    """Until each has finished a request that it had not finished at the call."""
    urls = [each.url for each in made.nodes.values()]
    before, deadline_s = {url: _finished(url) for url in urls}, time.monotonic() + _RECOVERS_S
    while any(_finished(url) <= before[url] for url in urls):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not all nodes serve again after {_RECOVERS_S:g} s")
        time.sleep(_LOOK_S)


def _resumed(stage: Stage) -> float:
    """By all fronts since their starts."""
    return sum(metric(url, "resumed_total", prefix="mmserve_front") for url in stage.urls)


def _finished(url: str) -> float:
    try:
        return metric(url, "request_success_total")
    except OSError:
        return 0.0


def rows(directory: Path, events: Sequence[str]) -> list[report.Row]:
    """One for each event, after an undisturbed run that says what the texts are."""
    bodies = streams(_BODIES, _TOKENS)
    with _stage(directory) as stage, ThreadPoolExecutor(1) as threads:
        expected: dict[int, str] = {}
        clients = Clients(stage.urls, bodies, _CLIENTS, expected)
        enough = asyncio.run(_disturbed(stage, "none", clients, threads)).enough
        assert len(expected) == len(bodies), "the undisturbed run was too short"
        print(f"the rate is back at {enough:.2f} of that before an event")
        return [_row(stage, name, clients, threads, enough) for name in events]


def _row(stage: Stage, name: str, before: Clients, threads: ThreadPoolExecutor, enough: float) -> report.Row:
    """``before``: an undisturbed run."""
    clients = Clients(stage.urls, before.bodies, _CLIENTS, before.expected)
    resumed = _resumed(stage)
    course = asyncio.run(_disturbed(stage, name, clients, threads, enough))
    for error in sorted(set(clients.failed)):
        print(f"  {name}: {error}")
    others = sum(client % len(_FRONT_PORTS) != 0 for client in clients.retried)
    return {
        "event": TITLES[name],
        "streams there": course.busy,
        "streams moved": max(0.0, _resumed(stage) - resumed),
        "requests": clients.asked,
        "failed": len(clients.failed),
        "changed": len(clients.changed),
        "errors that clients retried": len(clients.retried),
        "of clients of the other front": others,
        "retried answer after s": f"{clients.retry_s:.1f}" if clients.retried else "",
        "longest pause s": f"{clients.pause_s:.1f}",
        "longest answer s": f"{clients.answer_s:.1f}",
        "event s": f"{course.lasted_s:.1f}",
        "rate back after s": f"{course.recovery.after_s:.1f}",
        "least rate": f"{course.recovery.least:.2f}",
        "all nodes serve after s": f"{course.all_serve_s:.1f}",
    }
