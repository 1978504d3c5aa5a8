"""Gain from repeated images: requests with one image each, of which none, half or all were seen before.

Each request generates one token, so almost all of its cost is the image. Starts ``mmserve serve`` once for each --tp;
every --target is measured beside it, alternating within each repeat.

    python -m benchmarks.images.mm_hits
    python -m benchmarks.images.mm_hits --model DIR --target vllm=http://127.0.0.1:9000,model=DIR
"""

from __future__ import annotations

import argparse
import asyncio
import statistics

from benchmarks.load import report
from benchmarks.load.server import Target, parse_target, serve
from benchmarks.load.workload import Workload, bodies
from mmserve.cli.bench.client import Record, run

HITS = (0, 50, 100)
TIMEOUT_S = 300.0
POOL_SEED = 4711
"""Seed of the repeated images: they are the same in every run and differ from those of other seeds."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", default=[], type=parse_target, help="name=URL[,model=M]")
    parser.add_argument("--model", default="llava", help="for the servers that are started here")
    parser.add_argument("--serve-args", default="", help="flags for them")
    parser.add_argument("--tp", action="append", type=int, help="ranks of such a server; repeatable; default: 1 and 2")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=48, help="in one run")
    parser.add_argument("--size", type=int, default=1024, help="pixels of an image's side")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    return parser.parse_args()


def workload(name: str, count: int, options: argparse.Namespace) -> Workload:
    """``count`` requests with one new image each."""
    size = (options.size, options.size)
    return Workload(name, options.clients, count, prompt_words=4, output_tokens=1, images=1, image_size=size)


def with_hits(
    target: Target, hits: int, seed: int, known: list[dict[str, object]], options: argparse.Namespace
) -> list[dict[str, object]]:
    """Bodies of one run. ``hits`` per cent of them, evenly spread, have the image of one of ``known``."""
    fresh = bodies(workload(f"fresh-{hits}", options.requests, options), target.model, seed, {})
    for number, body in enumerate(fresh):
        if (number + 1) * hits // 100 > number * hits // 100:
            message, known_message = body["messages"][0], known[number % len(known)]["messages"][0]  # type: ignore[index]
            message["content"] = [known_message["content"][0], *message["content"][1:]]
    return fresh


def measure(target: Target, hits: int, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """One run. The known images are sent once before it."""
    known = bodies(workload("known", options.clients, options), target.model, POOL_SEED, {})
    asyncio.run(run(target.url, known, options.clients, TIMEOUT_S))
    records, wall_s = asyncio.run(
        run(target.url, with_hits(target, hits, seed, known, options), options.clients, TIMEOUT_S)
    )
    return row(records, wall_s)


def row(records: list[Record], wall_s: float) -> dict[str, float]:
    """Figures of the answered requests."""
    for error in {record.error for record in records if record.error}:
        print(f"  {error}")
    good = [record for record in records if not record.error]
    ttft_ms = [record.ttft_s * 1e3 for record in good]
    return {
        "ok": len(good),
        "requests_per_s": len(good) / wall_s,
        "ttft_p50_ms": report.percentile(ttft_ms, 0.5),
        "ttft_p99_ms": report.percentile(ttft_ms, 0.99),
        "cached_tokens": statistics.fmean(record.cached_tokens for record in good) if good else 0.0,
    }


def compare(servers: list[Target], options: argparse.Namespace) -> list[report.Row]:
    """All hit rates against all servers, alternating within each repeat."""
    runs: dict[tuple[int, str], list[dict[str, float]]] = {(hits, each.name): [] for hits in HITS for each in servers}
    for repeat in range(-1, options.repeats):
        for hits in HITS:
            for server in servers:
                figures = measure(server, hits, repeat * len(HITS) + hits, options)
                if repeat >= 0:
                    runs[hits, server.name].append(figures)
    return [{"hits %": hits, "server": name, **report.median_row(done)} for (hits, name), done in runs.items()]


def main() -> None:
    options = arguments()
    rows: list[report.Row] = []
    for tp in options.tp or (1, 2):
        with serve("--tp", str(tp), *options.serve_args.split(), model=options.model) as own:
            ours = Target(f"mmserve tp {tp}", own.url, own.model, own.pid)
            rows += compare([ours, *options.target], options)
            print(f"tp {tp}: done", flush=True)
    rows.sort(key=lambda row: row["hits %"])
    what = f"{options.clients} clients, one JPEG of {options.size} x {options.size} each, one token"
    print(f"\n{report.machine()}; {what}; medians of {options.repeats}\n\n{report.table(rows)}")
    report.write_json(options.json, rows)


if __name__ == "__main__":
    main()
