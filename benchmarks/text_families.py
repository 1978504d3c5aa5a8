"""Text families of one shape: how fast each is for each of its parameters, beside Llama.

The models have the layers and sizes of ``checkpoints.shapes``, random weights in bfloat16, and differ only in what
their architecture adds to Llama: a bias of Q, K and V (Qwen2), norms of query and key heads (Qwen3), nothing (Mistral).
"prefill" is one client with prompts of 1,000 words and one token out, "decode" one client with 128 tokens out, "batch"
eight such clients. A rate times the number of parameters is what the ratio compares. All servers run at once, and only
one has work: the families take turns with each load, in the other order in every second round, and a ratio is of one
round, because a machine's rate may drift by more than they differ.

    python -m benchmarks.text_families
    python -m benchmarks.text_families --size large --rounds 2
    python -m benchmarks.text_families --load batch --rounds 10
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.checkpoints.shapes import LARGE, SMALL
from benchmarks.checkpoints.text_shapes import TEXT_SHAPES, make_text_shape, num_parameters
from benchmarks.load import report
from benchmarks.load.measure import RequestOptions, once
from benchmarks.load.server import Target
from benchmarks.load.workload import Workload
from benchmarks.peers.servers import OURS, PEERS, Capacity, Setup, started

_BESIDE = "llama"
_AIM = 0.97
"""Of a family's rate for each parameter over Llama's."""
_SIZES = {"small": SMALL, "large": LARGE}
_PREFILL = Workload("prefill", 1, requests=6, prompt_words=1000, output_tokens=1)
_DECODE = Workload("decode", 1, requests=2, prompt_words=32, output_tokens=128)
_BATCH = Workload("batch", 8, requests=16, prompt_words=32, output_tokens=128)
Round = dict[str, dict[str, float]]
"""Tokens/s by family and load."""
_LOADS = (_PREFILL, _DECODE, _BATCH)


def main() -> int:
    """Measure all families and print two tables. Returns 1 if a family is slower than aimed at."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=_SIZES, default="small")
    parser.add_argument("--load", action="append", choices=[load.name for load in _LOADS], help="repeatable [all]")
    parser.add_argument("--rounds", type=int, default=3, help="medians are printed [%(default)s]")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--port", type=int, default=8198)
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    options = parser.parse_args()
    print(f"{report.machine()}; {options.dtype}; medians of {options.rounds}")
    with tempfile.TemporaryDirectory() as made:
        paths = {name: make_text_shape(Path(made) / name, name, _SIZES[options.size]) for name in TEXT_SHAPES}
        billions = {name: num_parameters(path) / 1e9 for name, path in paths.items()}
        rounds = _measured(paths, options)
    rates = {name: report.median_row([each[name] for each in rounds]) for name in paths}
    rows: list[report.Row] = [
        {"family": name, "billions of parameters": billions[name]}
        | {f"{load} tokens/s": rate for load, rate in rates[name].items()}
        for name in paths
    ]
    ratios = compared(rounds, billions)
    print("\n" + report.table(rows) + "\n\n" + report.table(ratios))
    report.write_json(options.json, [*rows, *ratios])
    return int(any(row["met"] == "no" for row in ratios))


def _measured(paths: Mapping[str, Path], options: argparse.Namespace) -> list[Round]:
    """Of each round."""
    (ours,) = (peer for peer in PEERS if peer.name == OURS)
    with ExitStack() as servers:
        targets = {}
        for index, (name, path) in enumerate(paths.items()):
            setup = Setup(path, options.port + index, options.dtype)
            targets[name], _ = servers.enter_context(started(ours, path, Capacity(), setup))
            once(targets[name], _BATCH, -1, RequestOptions())
        loads = [load for load in _LOADS if not options.load or load.name in options.load]
        return [_round(targets, loads, seed) for seed in range(options.rounds)]


def _round(targets: Mapping[str, Target], loads: Sequence[Workload], seed: int) -> Round:
    rates: Round = {name: {} for name in targets}
    for load in loads:
        for name in sorted(targets, key=[*targets].index, reverse=seed % 2 == 1):
            rates[name][load.name] = _rate(load, _figures(targets[name], load, seed))
    return rates


def _rate(load: Workload, figures: Mapping[str, float]) -> float:
    """Tokens/s: of the prompt, between the tokens of one answer, or of all answers."""
    if load is _PREFILL:
        return figures["prompt_tokens"] / figures["ttft_p50_ms"] * 1e3
    return 1e3 / figures["itl_p50_ms"] if load is _DECODE else figures["tokens_per_s"]


def _figures(target: Target, load: Workload, seed: int) -> dict[str, float]:
    figures = once(target, load, seed, RequestOptions())
    if figures["errors"]:
        raise RuntimeError(f"{figures['errors']:.0f} requests failed")
    return figures


def compared(rounds: Sequence[Round], billions: Mapping[str, float]) -> list[report.Row]:
    """Each family's tokens/s times its parameters, over Llama's in the same round; the medians of the rounds."""

    def ratio(each: Round, family: str, load: str) -> float:
        return each[family][load] * billions[family] / (each[_BESIDE][load] * billions[_BESIDE])

    return [
        report.at_least(
            "tokens/s a parameter over Llama's",
            f"{family} {load}",
            median(ratio(each, family, load) for each in rounds),
            _AIM,
        )
        for family in billions
        if family != _BESIDE
        for load in rounds[0][_BESIDE]
    ]


if __name__ == "__main__":
    sys.exit(main())
