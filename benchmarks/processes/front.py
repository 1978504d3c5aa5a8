"""What ``mmserve front`` costs: milliseconds that it adds to the first token, and CPU time of replicas' reports.

    python -m benchmarks.processes.front
    python -m benchmarks.processes.front --ray

First token: one server and one front on this machine; requests of one token, one at a time, alternately to the server
and to the front. All are answered from the caches, so that little but the way remains. With --ray both are those of
``mmserve serve --replicas 1``, and this is all. Reports: sockets of replicas in a process of their own say what they
hold and how loaded they are, encrypted; a front's listener in this one hears them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import multiprocessing
import re
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from benchmarks.load import report
from benchmarks.load.server import serve
from benchmarks.nodes.workload import Body, zipf_bodies
from mmserve.cli.bench.client import run
from mmserve.client.server_process import server_process
from mmserve.cluster.front.reports import ReportListener
from mmserve.cluster.scale.cluster import Cluster
from mmserve.cluster.scale.reports import Holdings, Kind, Load, Report, encoded
from mmserve.ipc.links import cluster_key
from mmserve.ipc.links.cluster_key import ClusterKey
from mmserve.router.reports.publisher import ReportPublisher

_READY = re.compile(r"ready: (http://[^\s,]+)")
_REPLICAS_READY = re.compile(r"ready: (http://[^\s,]+), 1 replicas")
_TIMEOUT_S = 60.0
_WARM_UP = 20
_TEXT: Body = {
    "model": "llava",
    "messages": [{"role": "user", "content": "What can you do?"}],
    "max_tokens": 1,
    "temperature": 0,
    "stream": True,
}
_SOCKETS = 50
_REPLICAS = (50, 250, 1000)
"""Whose reports the sockets send, each those of one replica or of several."""
_INTERVAL_S = 0.25
"""Between two reports of a replica, as servers send them."""
_NAMES = 2
"""How many names of each kind a report adds, and how many it removes."""
_HELD = 240
_WARM_UP_S = 2.0


def _requests() -> dict[str, Body]:
    (picture,) = zipf_bodies(1, 1, 1.0, 1)
    return {"text": _TEXT, "picture of 48 KB": picture | {"max_tokens": 1}}


@contextlib.contextmanager
def _server_and_front() -> Iterator[tuple[str, str]]:
    """Their URLs."""
    with contextlib.ExitStack() as stack:
        key = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mmserve-front-"))) / "key"
        cluster_key.make_if_missing(key)
        server = stack.enter_context(serve("--dtype", "float32", "--cluster-key-file", str(key)))
        command = ("-m", "mmserve", "front", "--port", "0", "--cluster-key-file", str(key), "--replica", server.url)
        front = stack.enter_context(
            server_process(
                [sys.executable, *command], _READY, on_line=lambda line: None, start_timeout_s=60, stop_timeout_s=30
            )
        )
        yield server.url, front.url


@contextlib.contextmanager
def _server_and_front_on_ray() -> Iterator[tuple[str, str]]:
    """Their URLs. Ray's log has the server's."""
    seen: list[str] = []
    command = ("-m", "mmserve", "serve", "--replicas", "1", "--port", "0", "--dtype", "float32")
    with server_process(
        [sys.executable, *command], _REPLICAS_READY, on_line=seen.append, start_timeout_s=150, stop_timeout_s=60
    ) as front:
        yield next(found[1] for line in seen if (found := _READY.search(line))), front.url


def _first_token_ms(url: str, body: Body) -> float:
    records, _ = asyncio.run(run(url, [body], 1, _TIMEOUT_S))
    if records[0].error:
        raise RuntimeError(records[0].error)
    return 1e3 * records[0].ttft_s


def added(pairs: int, *, on_ray: bool) -> list[report.Row]:
    """Of each request, ``pairs`` to the server and as many to the front."""
    rows: list[report.Row] = []
    with _server_and_front_on_ray() if on_ray else _server_and_front() as urls:
        for what, body in _requests().items():
            taken = [[_first_token_ms(url, body) for url in urls] for _ in range(_WARM_UP + pairs)][_WARM_UP:]
            direct, through = zip(*taken, strict=True)
            rows.append(
                {
                    "request": what,
                    "direct p50 ms": median(direct),
                    "through the front p50 ms": median(through),
                    "added ms, median of pairs": median(front - alone for alone, front in taken),
                    "direct p99 ms": report.percentile(direct, 0.99),
                    "through the front p99 ms": report.percentile(through, 0.99),
                }
            )
    return rows


def _report(number: int, snapshot: bool) -> bytes:
    """``number``: of it, and of the first of the names."""
    first = (number - _HELD) * _NAMES if snapshot else number * _NAMES
    added = tuple(range(first, (number + 1) * _NAMES))
    removed = () if snapshot else tuple(name - _HELD * _NAMES for name in added)
    kinds: tuple[Kind, ...] = ("pictures", "blocks")
    told = tuple(Holdings(kind, 0, number, added, removed, snapshot=snapshot) for kind in kinds)
    return encoded(Report(Load(slots=8), told))


def _say(key: ClusterKey, replicas: int, pipe: Connection) -> None:
    """In a process of its own: say where the sockets are, and publish, evenly, until told to end."""
    with contextlib.ExitStack() as stack:
        publishers = [stack.enter_context(ReportPublisher("tcp://127.0.0.1:*", key)) for _ in range(_SOCKETS)]
        pipe.send([each.endpoint for each in publishers])
        number, due_s = _HELD, time.monotonic()
        while not pipe.poll():
            for each in publishers:
                each.publish(_report(number, each.is_asked()))
                due_s += _INTERVAL_S / replicas
                time.sleep(max(0.0, due_s - time.monotonic()))
            number += 1


class _Counted(Cluster):
    """Counts what was heard."""

    heard = 0

    def load(self, replica: str, load: Load, now_s: float) -> None:
        self.heard += 1
        super().load(replica, load, now_s)


async def _listen(key: ClusterKey, endpoints: list[str], seconds: float) -> tuple[int, float]:
    """Reports heard, and seconds of CPU of this process."""
    known = _Counted()
    names = {f"node{number}": endpoint for number, endpoint in enumerate(endpoints)}
    known.set_replicas([*names])
    listener = ReportListener(known, key)
    listener.set(names)
    await asyncio.sleep(_WARM_UP_S)
    heard, cpu_s = known.heard, time.process_time()
    await asyncio.sleep(seconds)
    found = known.heard - heard, time.process_time() - cpu_s
    await listener.aclose()
    return found


def reports(replicas: int, seconds: float) -> report.Row:
    """CPU time of a report, ZeroMQ's own thread included."""
    key = ClusterKey.of(secrets.token_bytes(32))
    ours, theirs = multiprocessing.Pipe()
    speaker = multiprocessing.get_context("spawn").Process(target=_say, args=(key, replicas, theirs))
    speaker.start()
    try:
        heard, cpu_s = asyncio.run(_listen(key, ours.recv(), seconds))
    finally:
        ours.send(None)
        speaker.join()
    return {
        "replicas": replicas,
        "reports/s": heard / seconds,
        "CPU us a report": 1e6 * cpu_s / heard,
        "share of a core": f"{cpu_s / seconds:.3f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200, help="of requests, for each kind")
    parser.add_argument("--seconds", type=float, default=5, help="for which reports are heard")
    parser.add_argument("--ray", action="store_true", help="a front and a server on a Ray that is started for them")
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    arguments = parser.parse_args()
    print(report.machine())
    rows = added(arguments.pairs, on_ray=arguments.ray)
    print(f"\n{report.table(rows)}", flush=True)
    if not arguments.ray:
        heard = [reports(each, arguments.seconds) for each in _REPLICAS]
        print(f"\n{report.table(heard)}", flush=True)
        rows += heard
    report.write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
