"""Image flood: many clients at once, one large distinct JPEG each, while /health and a text stream are probed.

Prints requests/s, memory growth per request, and the latency of the probes when idle and during the flood. Without
--target it starts ``mmserve serve``. Several targets are measured alternately within each repeat.

    python -m benchmarks.processes.flood --model llava
    python -m benchmarks.processes.flood --target mmserve=http://127.0.0.1:8000,model=m,pid=1 --target other=http://...,model=m,pid=2
"""

from __future__ import annotations

import argparse
import asyncio
import time

from benchmarks.load import report
from benchmarks.load.memory import MIB, sampled
from benchmarks.load.probes import ProbeTarget, ProbeTimes, probes
from benchmarks.load.server import Target, parse_target, targets_or_started
from benchmarks.load.workload import Workload, bodies
from mmserve.cli.bench.client import Record, run

IDLE_S = 8.0
TIMEOUT_S = 600.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", type=parse_target, help="name=URL[,model=M][,pid=P]; repeatable")
    parser.add_argument("--model", default="llava", help="for the server that is started when no target is given")
    parser.add_argument("--serve-args", default="", help="flags for that server")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1, help="requests of each client, one after another")
    parser.add_argument("--size", type=int, default=1536, help="pixels of a picture's side")
    parser.add_argument("--output-tokens", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--health-path", default="/health")
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    return parser.parse_args()


def measure(target: Target, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """One flood against one server."""
    load = Workload(
        "flood", options.clients, options.clients * options.rounds, prompt_words=4, output_tokens=options.output_tokens,
        images=1, image_size=(options.size, options.size),
    )  # fmt: skip
    requests = bodies(load, target.model, seed, {})
    probed = ProbeTarget(target.url, target.model, options.health_path, {"ignore_eos": True})
    with probes(probed) as idle:
        time.sleep(IDLE_S)
    with probes(probed) as flooded, sampled(target.pid) as peak:
        records, wall_s = asyncio.run(run(target.url, requests, options.clients, TIMEOUT_S))
    return _row(records, wall_s, idle, flooded) | {"growth_mib_per_request": peak.growth_nbytes / MIB / len(records)}


def _row(records: list[Record], wall_s: float, idle: ProbeTimes, flooded: ProbeTimes) -> dict[str, float]:
    for error in {record.error for record in records if record.error}:
        print(f"  {error}")
    good = [record for record in records if not record.error]
    return {
        "ok": len(good),
        "requests_per_s": len(good) / wall_s,
        "ttft_p50_ms": report.percentile([record.ttft_s * 1e3 for record in good], 0.5),
        "health_p50_ms": report.percentile(flooded.health_s, 0.5) * 1e3,
        "health_p99_ms": report.percentile(flooded.health_s, 0.99) * 1e3,
        "health_max_ms": max(flooded.health_s, default=float("nan")) * 1e3,
        "itl_idle_p99_ms": report.percentile(idle.gaps_s, 0.99) * 1e3,
        "itl_p50_ms": report.percentile(flooded.gaps_s, 0.5) * 1e3,
        "itl_p99_ms": report.percentile(flooded.gaps_s, 0.99) * 1e3,
        "itl_max_ms": max(flooded.gaps_s, default=float("nan")) * 1e3,
    }


def main() -> None:
    options = arguments()
    with targets_or_started(options.target, options.serve_args, options.model) as servers:
        runs: dict[str, list[dict[str, float]]] = {server.name: [] for server in servers}
        for server in servers:  # warm-up
            measure(server, -1, argparse.Namespace(**{**vars(options), "clients": 2, "rounds": 1}))
        for repeat in range(options.repeats):
            for server in servers:
                runs[server.name].append(measure(server, repeat, options))
                print(f"{server.name}: {repeat + 1} of {options.repeats}", flush=True)
    rows: list[report.Row] = [{"server": name, **report.median_row(done)} for name, done in runs.items()]
    what = f"{options.clients} clients, {options.rounds} JPEGs of {options.size} x {options.size} each"
    print(f"\n{report.machine()}; {what}; medians of {options.repeats}\n\n{report.table(rows)}")
    report.write_json(options.json, rows)


if __name__ == "__main__":
    main()
