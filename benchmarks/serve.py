"""Load generator for OpenAI-style servers: TTFT, ITL, tokens/s, requests/s and peak memory of the server's processes.

Without --target it starts ``mmserve serve`` itself. Several targets are measured in turn within each repeat, so that
a machine whose speed drifts treats them alike.

    python -m benchmarks.serve
    mmserve bench --url http://127.0.0.1:8000 --plot bench.png
    python -m benchmarks.serve --load images --target mmserve=http://127.0.0.1:8000,model=llava,pid=123 \\
                               --target other=http://127.0.0.1:9000,model=llava,pid=456
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
from collections.abc import Sequence

from benchmarks.load import plot, report
from benchmarks.load.client import run
from benchmarks.load.memory import sampled
from benchmarks.load.server import Target, given_or_own, parse_target
from benchmarks.load.workload import NAMED, Workload, bodies

_PLOTTED = ("tokens_per_s", "requests_per_s", "ttft_p50_ms", "itl_p50_ms")


def arguments(argv: Sequence[str] | None, prog: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=prog, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="the one server to measure, in place of --target")
    parser.add_argument("--model", default="llava", help="its model's name, with --url or when a server is started")
    parser.add_argument("--target", action="append", type=parse_target, help="name=URL[,model=M][,pid=P]; repeatable")
    parser.add_argument("--serve-args", default="", help="flags for the server that is started when no target is given")
    parser.add_argument("--load", action="append", choices=sorted(NAMED), help="named load; repeatable; default: all")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each load; medians are printed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds one request may take")
    parser.add_argument("--api-key")
    parser.add_argument(
        "--extra",
        type=json.loads,
        default={"ignore_eos": True},
        help='fields of every request, JSON; default: {"ignore_eos": true}',
    )
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    parser.add_argument("--plot", metavar="PNG", help="draw tokens/s and times")
    for field, help in (
        ("concurrency", "clients at once"),
        ("requests", "requests in one run"),
        ("prompt-words", "words of each prompt"),
        ("output-tokens", "tokens generated for each (eos is ignored)"),
        ("images", "images in each request"),
        ("image-pool", "different images in all; 0: every one is new"),
    ):
        parser.add_argument(f"--{field}", type=int, help=f"{help}; overrides the named load")
    options = parser.parse_args(argv)
    if options.url:
        options.target = [*(options.target or []), Target("server", options.url.rstrip("/"), options.model)]
    return options


def loads(options: argparse.Namespace) -> list[Workload]:
    """The named loads with the overrides of the command line."""
    names = ("concurrency", "requests", "prompt_words", "output_tokens", "images", "image_pool")
    changes = {name: value for name in names if (value := getattr(options, name)) is not None}
    return [dataclasses.replace(NAMED[name], **changes) for name in options.load or NAMED]


def measure(target: Target, load: Workload, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """One run of one load against one target."""
    requests = bodies(load, target.model, seed, options.extra)
    with sampled(target.pid) as peak:
        records, wall_s = asyncio.run(run(target.url, requests, load.concurrency, options.timeout, options.api_key))
    for error in {record.error for record in records if record.error}:
        print(f"  {target.name}: {error}")
    return report.row(records, wall_s, peak)


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Measure, print, write. ``argv``: without the program's name."""
    options = arguments(argv, prog)
    rows: list[report.Row] = []
    with given_or_own(options.target, options.serve_args, options.model) as servers:
        for load in loads(options):
            runs: dict[str, list[dict[str, float]]] = {server.name: [] for server in servers}
            for server in servers:
                measure(server, dataclasses.replace(load, requests=load.concurrency), -1, options)  # warm-up
            for repeat in range(options.repeats):
                for server in servers:
                    runs[server.name].append(measure(server, load, options.seed + repeat, options))
            rows += [{"load": load.name, "server": name, **report.median_row(done)} for name, done in runs.items()]
            print(f"{load.name}: done", flush=True)
    print(f"\n{report.machine()}; medians of {options.repeats}\n\n{report.table(rows)}")
    report.write_json(options.json, rows)
    if options.plot:
        plot.draw(options.plot, rows, labels=("load", "server"), figures=_PLOTTED)


if __name__ == "__main__":
    main()
