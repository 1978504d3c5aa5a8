"""What the small server around OpenVINO costs: the same loads over HTTP, and in the process of its pipeline.

    python -m benchmarks.peers.openvino_cost --peers DIR --only W1 --only W2 --repeats 3

In process nothing is parsed, templated, tokenized, turned into text or sent while the time runs, and no client takes
part of the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.load import report
from benchmarks.load.measure import RequestOptions, once
from benchmarks.load.named import LONG, WORKLOADS
from benchmarks.load.workload import Workload, bodies
from benchmarks.memory.pictures import IGNORE_EOS
from benchmarks.peers.servers import MODELS, PEERS, Capacity, Peer, Setup, command, started
from mmserve.cli.bench.client import Record

_LOADS = {name: load for name, load in {**WORKLOADS, **LONG}.items() if not load.images}
_SHOWN = ("ok", "tokens_per_s", "requests_per_s", "ttft_p50_ms", "itl_p50_ms")


def main() -> None:
    """Print both rows of each load."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", required=True, type=Path, metavar="DIR", help="where models and OpenVINO are")
    parser.add_argument("--only", action="append", choices=_LOADS, help="repeatable; default: W1 to W3")
    parser.add_argument("--server", choices=("openvino", "openvino-kv16"), default="openvino")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, help="of each load, in place of its own number")
    parser.add_argument("--port", type=int, default=8199)
    options = parser.parse_args()
    loads = [
        replace(_LOADS[name], requests=options.requests or _LOADS[name].requests)
        for name in options.only or ("W1", "W2", "W3")
    ]
    peer = next(peer for peer in PEERS if peer.name == options.server)
    setup, capacity = Setup(options.peers, options.port, "auto"), Capacity(8192)
    seeds = range(-1, options.repeats)
    with started(peer, setup.home / MODELS["text"], capacity, setup) as (target, _):
        served = [[once(target, load, seed, RequestOptions()) for seed in seeds] for load in loads]
    alone = in_process(peer, loads, seeds, capacity, setup)
    print(f"{report.machine()}; {peer.name}; medians of {options.repeats}")
    rows: list[report.Row] = []
    for load, *runs in zip(loads, served, alone, strict=True):
        for way, each in zip(("over HTTP", "in process"), runs, strict=True):
            figures = report.median_row(each[1:])
            rows.append({"load": load.name, "way": way, **{name: figures[name] for name in _SHOWN}})
    print(report.table(rows))


def in_process(
    peer: Peer, loads: Sequence[Workload], seeds: Sequence[int], capacity: Capacity, setup: Setup
) -> list[list[dict[str, float]]]:
    """The figures of each load and seed. With a negative seed each client sends one request."""
    runs = [
        {"clients": load.concurrency, "bodies": bodies(_of(load, seed), "m", seed, IGNORE_EOS)}
        for load in loads
        for seed in seeds
    ]
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "runs.json")
        file.write_text(json.dumps(runs))
        words = [*command(peer, setup.home / MODELS["text"], capacity, setup), "--runs", str(file)]
        done = subprocess.run(words, env=os.environ | peer.environment, stdout=subprocess.PIPE, check=True)
    figures = [
        report.row([Record(**record) for record in run["records"]], run["wall_s"])
        for run in json.loads(done.stdout.splitlines()[-1])
    ]
    return [figures[start : start + len(seeds)] for start in range(0, len(figures), len(seeds))]


def _of(load: Workload, seed: int) -> Workload:
    return replace(load, requests=load.concurrency) if seed < 0 else load


if __name__ == "__main__":
    main()
