"""Load generator for OpenAI-style servers: TTFT, ITL, tokens/s, requests/s and peak memory of the server's processes.

Without --url and --target it starts ``mmserve serve``. Several targets are measured alternately within each repeat,
so a drift of the machine's speed affects them alike. Loads with pictures are left out where a server refuses images.
The number of words is chosen to give the intended number of tokens. single, text, prefix, images and repeated are
like W1 to W5, mostly shorter.

    python -m benchmarks.serve --url http://127.0.0.1:8000 --plot bench.png
    python -m benchmarks.serve --url http://127.0.0.1:8000 --load W1 --load W4 --json bench.json
    python -m benchmarks.serve --load images --target mmserve=http://127.0.0.1:8000,model=llava,pid=123 \\
                               --target other=http://127.0.0.1:9000,model=llava,pid=456
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.load import named, plot, report
from benchmarks.load.measure import TIMEOUT_S, RequestOptions, mixed, once
from benchmarks.load.memory import sampled
from benchmarks.load.named import MIXED, NAMED, WORKLOADS, Mixed
from benchmarks.load.server import Target, parse_target, targets_or_started
from benchmarks.load.server_profile import ServerProfile, profile_of, served_model
from benchmarks.load.workload import Workload
from benchmarks.memory.pictures import IGNORE_EOS

Loads = Mapping[Target, Workload | Mixed]
"""Server -> one load, with that server's word counts."""
_OWN_MODEL = "llava"
_PLOTTED = ("tokens_per_s", "requests_per_s", "ttft_p50_ms", "itl_p50_ms")
_OVERRIDES = {
    "concurrency": "clients at once",
    "requests": "requests in one run",
    "prompt-words": "words of each prompt, however many tokens they are",
    "output-tokens": "tokens generated for each (eos is ignored)",
    "images": "images in each request",
    "image-pool": "different images in all; 0: every one is new",
}


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\n{named.__doc__}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--url", help="the one server to measure, in place of --target")
    parser.add_argument(
        "--model", help=f"its model's name [the first it lists], or of the server that is started [{_OWN_MODEL}]"
    )
    parser.add_argument("--target", action="append", type=parse_target, help="name=URL[,model=M][,pid=P]; repeatable")
    parser.add_argument("--serve-args", default="", help="flags for the server that is started when no target is given")
    parser.add_argument("--load", action="append", choices=NAMED, help="repeatable [W1 to W6]")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each load; medians are printed [%(default)s]")
    parser.add_argument(
        "--seed",
        type=int,
        default=random.randrange(1 << 31),
        help="of prompts and pictures [another each time: a server may still know those of the last]",
    )
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds one request may take [%(default)g]")
    parser.add_argument("--api-key")
    parser.add_argument(
        "--extra",
        type=json.loads,
        default=IGNORE_EOS,
        help=f"fields of every request, JSON [{json.dumps(dict(IGNORE_EOS))}]",
    )
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    parser.add_argument("--plot", metavar="PNG", help="draw tokens/s and times")
    for name, help in _OVERRIDES.items():
        parser.add_argument(f"--{name}", type=int, help=f"{help}; overrides the named load, of W6 its text")
    options = parser.parse_args(argv)
    if options.url:
        options.target = [*(options.target or []), _server(options, parser)]
    return options


def _server(options: argparse.Namespace, parser: argparse.ArgumentParser) -> Target:
    url = options.url.rstrip("/")
    try:
        return Target("server", url, options.model or served_model(url, options.api_key))
    except (OSError, LookupError, ValueError) as error:
        parser.error(f"{url} does not say which models it serves ({error}); name one with --model")


def planned(profiles: Mapping[Target, ServerProfile], options: argparse.Namespace) -> Iterator[Loads]:
    """For every chosen load, the servers that support it. Prints the servers that are left out."""
    for name in options.load or (*WORKLOADS, MIXED.name):
        loads = {server: _load_for(profile, name, options) for server, profile in profiles.items()}
        left_out = [
            server for server, load in loads.items() if _has_pictures(load) and not profiles[server].takes_pictures
        ]
        for server in left_out:
            print(f"{server.name}: {name} left out, it takes no pictures", flush=True)
        yield {server: load for server, load in loads.items() if server not in left_out}


def _has_pictures(load: Workload | Mixed) -> bool:
    return isinstance(load, Mixed) or load.images > 0


def _load_for(profile: ServerProfile, name: str, options: argparse.Namespace) -> Workload | Mixed:
    """The named load, with prompts of the intended number of tokens and the overrides of the command line."""
    fields = (option.replace("-", "_") for option in _OVERRIDES)
    changes = {field: value for field in fields if (value := getattr(options, field)) is not None}

    def changed(load: Workload) -> Workload:
        return dataclasses.replace(named.with_token_lengths(load, profile.tokens_per_word), **changes)

    load = NAMED[name]
    return dataclasses.replace(load, text=changed(load.text)) if isinstance(load, Mixed) else changed(load)


def measure(target: Target, load: Workload | Mixed, seed: int, request_options: RequestOptions) -> dict[str, float]:
    """One run of one load against one target. A negative seed is a warm-up."""
    if isinstance(load, Mixed):
        return mixed(target, load, seed, request_options)
    with sampled(target.pid) as peak:
        figures = once(target, load, seed, request_options)
    return figures | report.memory(peak)


def measure_all(loads: Loads, options: argparse.Namespace, request_options: RequestOptions) -> list[report.Row]:
    """A row for each server; their runs alternate."""
    runs: dict[Target, list[dict[str, float]]] = {server: [] for server in loads}
    for repeat in range(-1, options.repeats):
        for server, load in loads.items():
            what = f"run {repeat + 1} of {options.repeats}" if repeat >= 0 else "warm-up"
            print(f"{server.name}: {load.name}, {what}", flush=True)
            seed = options.seed + repeat if repeat >= 0 else -1 - options.seed
            runs[server].append(measure(server, load, seed, request_options))
    return [
        {"load": load.name, "server": server.name, **report.median_row(runs[server][1:])}
        for server, load in loads.items()
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print, write. ``argv``: without the program's name."""
    options = arguments(argv)
    request_options = RequestOptions(options.extra, options.timeout, options.api_key)
    rows: list[report.Row] = []
    with targets_or_started(options.target, options.serve_args, options.model or _OWN_MODEL) as servers:
        try:
            profiles = {server: profile_of(server, request_options) for server in servers}
        except ConnectionError as error:
            sys.exit(f"no answer: {error}")
        for loads in planned(profiles, options):
            rows += measure_all(loads, options, request_options)
    print(f"\n{report.machine()}; medians of {options.repeats}, seed {options.seed}")
    for is_mixed in (False, True):  # mixed loads have other columns
        if table := [row for row in rows if (row["load"] == MIXED.name) is is_mixed]:
            print(f"\n{report.table(table)}")
    report.write_json(options.json, rows)
    if options.plot:
        plot.draw(options.plot, rows, labels=("load", "server"), figures=_PLOTTED)


if __name__ == "__main__":
    main()
