"""Text families of one shape: how fast each is for each of its parameters, beside Llama.

The models have the layers and sizes of ``checkpoints.shapes``, random weights in bfloat16, and differ only in what
their architecture adds to Llama: a bias of Q, K and V (Qwen2), norms of query and key heads (Qwen3), nothing (Mistral).
"prefill" is one client with prompts of 1,000 words and one token out, "decode" one client with 128 tokens out, "batch"
eight such clients. A rate times the number of parameters is what the ratio compares. The families take turns within
each round.

    python -m benchmarks.text_families
    python -m benchmarks.text_families --size large --rounds 2
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

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
_RATES = (_PREFILL.name, _DECODE.name, _BATCH.name)


def main() -> int:
    """Measure all families and print two tables. Returns 1 if a family is slower than aimed at."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=_SIZES, default="small")
    parser.add_argument("--rounds", type=int, default=3, help="medians are printed [%(default)s]")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--port", type=int, default=8198)
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    options = parser.parse_args()
    print(f"{report.machine()}; {options.dtype}; medians of {options.rounds}")
    with tempfile.TemporaryDirectory() as made:
        paths = {name: make_text_shape(Path(made) / name, name, _SIZES[options.size]) for name in TEXT_SHAPES}
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in paths}
        for _ in range(options.rounds):
            for name, path in paths.items():
                runs[name].append(_round(path, options))
        billions = {name: num_parameters(path) / 1e9 for name, path in paths.items()}
    rows = [_row(name, billions[name], report.median_row(found)) for name, found in runs.items()]
    ratios = compared(rows)
    print("\n" + report.table(rows) + "\n\n" + report.table(ratios))
    report.write_json(options.json, [*rows, *ratios])
    return int(any(row["met"] == "no" for row in ratios))


def _round(path: Path, options: argparse.Namespace) -> dict[str, float]:
    """Tokens/s of each load, from a server of its own."""
    (ours,) = (peer for peer in PEERS if peer.name == OURS)
    with started(ours, path, Capacity(), Setup(path, options.port, options.dtype)) as (target, _):
        once(target, _BATCH, -1, RequestOptions())
        prefill = _figures(target, _PREFILL)
        return {
            _PREFILL.name: prefill["prompt_tokens"] / prefill["ttft_p50_ms"] * 1e3,
            _DECODE.name: 1e3 / _figures(target, _DECODE)["itl_p50_ms"],
            _BATCH.name: _figures(target, _BATCH)["tokens_per_s"],
        }


def _figures(target: Target, load: Workload) -> dict[str, float]:
    figures = once(target, load, 0, RequestOptions())
    if figures["errors"]:
        raise RuntimeError(f"{figures['errors']:.0f} requests failed")
    return figures


def _row(name: str, billions: float, rates: dict[str, float]) -> report.Row:
    return {"family": name, "billions of parameters": billions} | {
        f"{load} tokens/s": rate for load, rate in rates.items()
    }


def compared(rows: list[report.Row]) -> list[report.Row]:
    """Each family's tokens/s times its parameters, over Llama's."""
    work = {
        (str(row["family"]), load): float(str(row[f"{load} tokens/s"])) * float(str(row["billions of parameters"]))
        for row in rows
        for load in _RATES
    }
    return [
        report.at_least("tokens/s a parameter over Llama's", f"{family} {load}", rate / work[_BESIDE, load], _AIM)
        for (family, load), rate in work.items()
        if family != _BESIDE
    ]


if __name__ == "__main__":
    sys.exit(main())
