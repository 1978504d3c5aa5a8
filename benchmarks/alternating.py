"""Servers that all run at once answer the same load alternately, so that a machine whose speed changes favours none.

    python -m benchmarks.alternating --peers DIR --load W7 --server mmserve --server openvino-kv16 --rounds 5
    python -m benchmarks.alternating --peers DIR --load W4 --model DIR/SmolVLM --server mmserve --server vllm

A round is one run of the load on each server, every second one in the opposite order. Its ratio is that of the first
server's figure to another's in the same round. While one server answers, the others are idle but hold their memory.
``of_limit`` is the least time of the load on this machine (``benchmarks.peers.roofline``) divided by a server's median
time, each with the tokens that the first server computes; left out for a vision tower whose operations are not counted
there. ``--load`` is one of benchmarks/README.md, started with the same limits as by ``benchmarks.vs_peers``.
"""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.load import report
from benchmarks.load.measure import RequestOptions, once
from benchmarks.load.named import LONG, WORKLOADS
from benchmarks.load.server import Target
from benchmarks.load.workload import Workload
from benchmarks.peers import roofline
from benchmarks.peers.limits import SHARE
from benchmarks.peers.loads import groups
from benchmarks.peers.servers import MODELS, PEERS, Setup, for_load, started
from mmserve.checkpoint.load import load as load_model
from mmserve.checkpoint.spec import ModelSpec

LOADS = {**WORKLOADS, **LONG}
FIGURES = ("tokens_per_s", "ttft_p50_ms", "itl_p50_ms")
Rounds = dict[str, list[dict[str, float]]]
"""Server -> the figures of each round."""


def main() -> None:
    """Print each server's medians, and the ratios of each round."""
    options = arguments()
    load = replace(LOADS[options.load], requests=options.requests or LOADS[options.load].requests)
    dtype = roofline.mode(options.dtype)
    print(
        f"{report.machine()}; {dtype}; {load.name}: {options.rounds} rounds, {load.requests} requests in each",
        flush=True,
    )
    group = next(groups([load.name], options.peers))
    path = options.model or options.peers / MODELS[group.kind]
    rates = roofline.measure(dtype)
    with contextlib.ExitStack() as stack:
        targets = []
        for number, name in enumerate(options.server):
            setup = Setup(options.peers, options.port + number, options.dtype, options.serve_args)
            peer = next(peer for peer in PEERS if peer.name == name)
            server = started(for_load(peer, load), path, group.capacity, setup)
            targets.append(stack.enter_context(server)[0])
        rounds = measured(targets, load, options.rounds)
    rates = rates.best(roofline.measure(dtype))
    least_s = least_seconds(load, load_model(path), rounds, rates, roofline.kv_mode(dtype, options.serve_args))
    print(report.table(medians(rounds, least_s)))
    print(report.table(ratios(rounds)))
    report.write_json(options.json, [{"server": name, **row} for name, rows in rounds.items() for row in rows])


def arguments() -> argparse.Namespace:
    """From the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", required=True, type=Path, metavar="DIR", help="where models and servers are")
    parser.add_argument("--load", required=True, choices=LOADS)
    parser.add_argument("--model", type=Path, metavar="DIR", help="a checkpoint in place of the load's own")
    names = [peer.name for peer in PEERS]
    parser.add_argument("--server", required=True, action="append", choices=names, help="two or more; repeatable")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, help="of each run, in place of the load's own number")
    parser.add_argument("--serve-args", default="", help="more flags for mmserve")
    parser.add_argument("--dtype", default="auto", help="of mmserve and vLLM [%(default)s]")
    parser.add_argument("--port", type=int, default=8199, help="of the first server; the others have the next ones")
    parser.add_argument("--json", help="also write the figures of each round here")
    options = parser.parse_args()
    if len(options.server) < 2:
        parser.error("--server must be given at least twice")
    serve_any = {peer.name for peer in PEERS if "llava" in peer.models}
    if (options.model or LOADS[options.load].images) and not serve_any.issuperset(options.server):
        parser.error(f"--model and loads of pictures are for {', '.join(sorted(serve_any))}")
    return options


def measured(targets: list[Target], load: Workload, count: int) -> Rounds:
    """Runs the load on all servers in each round, after a run of one request a client that is not counted."""
    rounds: Rounds = {target.name: [] for target in targets}
    for seed in range(-1, count):
        for target in targets if seed % 2 else reversed(targets):
            figures = once(target, load, seed, RequestOptions())
            if figures["errors"]:
                raise SystemExit(f"{target.name} did not answer all requests")
            if seed >= 0:
                rounds[target.name].append(figures)
                print(f"round {seed}: {target.name} {figures['tokens_per_s']:.4g} tokens/s", flush=True)
    return rounds


def least_seconds(
    load: Workload, model: ModelSpec, rounds: Rounds, rates: roofline.Rates, kv_dtype: str
) -> float | None:
    """Of one request of the load on this machine, with the tokens that the first server computed. None: not known."""
    ours = next(iter(rounds.values()))
    prompt, cached = (median(row[name] for row in ours) for name in ("prompt_tokens", "cached_tokens"))
    try:
        work = roofline.work(load, model, roofline.Tokens(prompt, cached), kv_dtype)
    except NotImplementedError:
        return None
    return (work / load.requests).least_s(rates)


def medians(rounds: Rounds, least_s: float | None) -> list[report.Row]:
    """A row for each server. ``least_s``: see ``least_seconds``."""
    return [
        {"server": name}
        | {figure: median(row[figure] for row in rows) for figure in FIGURES}
        | ({} if least_s is None else {SHARE: least_s * median(row["requests_per_s"] for row in rows)})
        for name, rows in rounds.items()
    ]


def ratios(rounds: Rounds) -> list[report.Row]:
    """The first server's tokens/s over each other's in the same round: median, least and greatest."""
    (first, ours), *others = rounds.items()
    found: list[report.Row] = []
    for name, rows in others:
        each = [a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(ours, rows, strict=True)]
        found.append(
            {"tokens/s": f"{first} over {name}", "median": median(each), "least": min(each), "most": max(each)}
        )
    return found


if __name__ == "__main__":
    main()
