"""mmserve beside other servers on this machine: each alone, one after another, with the same loads.

    python -m benchmarks.vs_peers --peers DIR --repeats 3 --json peers.json
    python -m benchmarks.vs_peers --peers DIR --only W1 --server mmserve --serve-args "--quantization int8"
    python -m benchmarks.vs_peers --peers DIR --only clients --only prompts
    python -m benchmarks.vs_peers --peers DIR --only W2 --target other=http://127.0.0.1:9000,model=m,pid=123

DIR holds models/smollm2-noeos, models/llava-rand and the installed peers: venv-vllm (vLLM), venv-ov (OpenVINO GenAI),
llamacpp/build/bin/llama-server; the last two use models/smollm2-f16.gguf. A missing peer is named and left out. Running
servers are named with --target (text model) and --picture-target (LLaVA).

vLLM runs in the run's dtype and, as vllm-float32, in float32; as vllm-compiled without --enforce-eager. OpenVINO runs
behind a small server of our own (``benchmarks.peers.on_openvino``) with its default KV cache of 8 bits and, as
openvino-kv16, of 16.

The loads are W1 to W8 (W7 and W8 if asked for) and, for the text model, ``clients`` (1 to 64 clients, 128 in, 64 out)
and ``prompts`` (128 to 4,096 tokens in, one client, 16 out). Ratios are mmserve's figure over the peer's. ``of_limit``
is the least time of the load on this machine (``benchmarks.peers.roofline``), with as many tokens from the prefix cache
and right drafts as mmserve had, divided by the time that it took; in W6 the answers to pictures read nothing, because
they can be steps of the text's answers.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.images.frontend.histogram import growth
from benchmarks.load import named, report
from benchmarks.load.measure import RequestOptions, mixed, once
from benchmarks.load.memory import MIB, usage
from benchmarks.load.named import MIXED
from benchmarks.load.server import Target, parse_target
from benchmarks.load.workload import Workload
from benchmarks.peers import roofline
from benchmarks.peers.limits import SHARE, check_limits, ratios, verdicts
from benchmarks.peers.loads import CHOICES, Group, groups
from benchmarks.peers.servers import MODELS, OURS, PEERS, DoesNotStart, Peer, Setup, started
from mmserve.checkpoint.load import load as load_model

_WARM_UP_TOKENS = 128
"""At most, of an answer before the runs that count."""
_RIGHT_DRAFTS = "mmserve:accepted_draft_tokens_total"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=f"{__doc__}\n{named.__doc__}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", required=True, type=Path, metavar="DIR", help="where models and peers are")
    parser.add_argument("--only", action="append", choices=CHOICES, help="repeatable; default: W1 to W6")
    parser.add_argument("--server", action="append", choices=[peer.name for peer in PEERS], help="repeatable")
    for flag, model in (("--target", "text"), ("--picture-target", "LLaVA")):
        parser.add_argument(
            flag,
            action="append",
            type=parse_target,
            default=[],
            metavar="NAME=URL[,model=M][,pid=P]",
            help=f"a server of the {model} model that runs; repeatable",
        )
    parser.add_argument("--serve-args", default="", help="more flags for mmserve")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, help="of each load, in place of its own number")
    parser.add_argument("--dtype", default="auto", help="of mmserve and vLLM [%(default)s]")
    parser.add_argument("--port", type=int, default=8199)
    parser.add_argument("--json", help="also write the rows here")
    return parser.parse_args()


def main() -> None:
    """Measure all servers with all loads, print the tables."""
    options = arguments()
    peers = list(_installed(options))
    every, mixed_rows = list[report.Row](), list[report.Row]()
    dtype = roofline.mode(options.dtype)
    print(f"{report.machine()}; {dtype}; medians of {options.repeats}", flush=True)
    for group in groups(options.only, options.peers):
        rows, mixed_of_group = list[report.Row](), list[report.Row]()
        rates = roofline.measure(dtype)
        for peer_or_target in _servers(group, peers, options):
            with _left_out_if_it_does_not_start(), peer_or_target as (target, start_s):
                rows += [_row(target, load, start_s, options) for load in group.loads]
                mixed_of_group += [_mixed_row(target, options)] if group.mixed else []
        _add_shares(rows, mixed_of_group, group, rates.best(roofline.measure(dtype)), options)
        _print(group.title, rows, ratios(rows))
        every += rows
        mixed_rows += mixed_of_group
    _print(f"{MIXED.name}: {MIXED.text.name} alone, and beside {MIXED.pictures.name}", mixed_rows)
    limits = check_limits(every, mixed_rows)
    _print("targets", limits)
    _print("verdicts", verdicts(every, mixed_rows))
    report.write_json(options.json, [*every, *mixed_rows, *limits])


@contextlib.contextmanager
def _left_out_if_it_does_not_start() -> Iterator[None]:
    try:
        yield
    except DoesNotStart as error:
        print(f"left out: {error}", flush=True)


def _print(title: str, *tables: list[report.Row]) -> None:
    for rows in filter(None, tables):
        print(f"\n{title}\n\n{report.table(rows)}", flush=True)


def _installed(options: argparse.Namespace) -> Iterator[Peer]:
    for peer in PEERS:
        if options.server and peer.name not in options.server:
            continue
        if peer.is_installed(options.peers):
            yield peer
        else:
            print(f"{peer.name} is not installed: left out")


def _servers(
    group: Group, peers: list[Peer], options: argparse.Namespace
) -> Iterator[contextlib.AbstractContextManager[tuple[Target, float]]]:
    """The servers, one after another. A target with a peer's name replaces that peer."""
    given: list[Target] = options.target if group.kind == "text" else options.picture_target
    setup = Setup(options.peers, options.port, options.dtype, options.serve_args)
    for target in given:
        yield contextlib.nullcontext((target, float("nan")))
    for peer in peers:
        if group.kind in peer.models and peer.name not in {target.name for target in given}:
            yield started(peer, setup.home / MODELS[group.kind], group.capacity, setup)


def _row(target: Target, load: Workload, start_s: float, options: argparse.Namespace) -> report.Row:
    print(f"{target.name}: {load.name}", flush=True)
    figures = _medians(lambda seed: _run(target, _counted(load, options), seed), options.repeats)
    pss_mib = usage(target.pid).nbytes / MIB if target.pid else float("nan")
    return {"load": load.name, "server": target.name, **figures, "start_s": start_s, "pss_mib": pss_mib}


def _run(target: Target, load: Workload, seed: int) -> dict[str, float]:
    """One run, with the drafts of an answer that were right. Other servers than mmserve draft nothing here."""
    if seed < 0:
        load = replace(load, output_tokens=min(load.output_tokens, _WARM_UP_TOKENS))
    if target.name != OURS or not target.pid:
        return once(target, load, seed, RequestOptions()) | {"drafted_tokens": 0.0}
    with growth(target.url) as grown:
        figures = once(target, load, seed, RequestOptions())
    return figures | {"drafted_tokens": grown.get(_RIGHT_DRAFTS, 0.0) / load.requests}


def _mixed_row(target: Target, options: argparse.Namespace) -> report.Row:
    print(f"{target.name}: {MIXED.name}", flush=True)
    load = replace(MIXED, text=_counted(MIXED.text, options))
    figures = _medians(lambda seed: mixed(target, load, seed, RequestOptions()), options.repeats)
    return {"load": MIXED.name, "server": target.name, **figures}


def _add_shares(
    rows: list[report.Row],
    mixed_rows: list[report.Row],
    group: Group,
    rates: roofline.Rates,
    options: argparse.Namespace,
) -> None:
    if not (path := options.peers / MODELS[group.kind]).exists():
        return
    model, kv_dtype = load_model(path), roofline.kv_mode(roofline.mode(options.dtype), options.serve_args)

    def work_of_one(load: Workload, row: report.Row, figures: str = "") -> roofline.Work:
        """Of one request of the load, with the tokens that the row has for it."""
        names = ("prompt_tokens", "cached_tokens", "drafted_tokens")
        tokens = roofline.Tokens(*(float(str(row.get(f"{figures}{name}", 0.0))) for name in names))
        return roofline.work(load, model, tokens, kv_dtype) / load.requests

    ours = {row["load"]: row for row in [*rows, *mixed_rows] if row["server"] == OURS}
    for load, row in ((load, row) for load in group.loads for row in rows if row["load"] == load.name):
        least_s = work_of_one(_counted(load, options), ours.get(load.name, row)).least_s(rates)
        row[SHARE] = least_s * float(str(row["requests_per_s"]))
    for row in mixed_rows:
        text = work_of_one(MIXED.text, ours.get(MIXED.name, row))
        pictures = work_of_one(MIXED.pictures, ours.get(MIXED.name, row), "picture_")
        row[SHARE] = text.least_s(rates) * float(str(row["requests_per_s"]))
        row[SHARE] += pictures.operations / rates.operations * float(str(row["pictures_per_s"]))


def _counted(load: Workload, options: argparse.Namespace) -> Workload:
    return replace(load, requests=options.requests or load.requests)


def _medians(measure: Callable[[int], dict[str, float]], repeats: int) -> dict[str, float]:
    """Medians over the repeats, after a warm-up with seed -1. Each repeat is printed when it ends: a run takes long and
    may be stopped before the tables.
    """
    rows = list[dict[str, float]]()
    for seed in range(-1, repeats):
        row = measure(seed)
        if seed >= 0:
            print("  " + ", ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
            rows.append(row)
    return report.median_row(rows)


if __name__ == "__main__":
    main()
