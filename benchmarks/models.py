"""Every model family under one load, beside vLLM: 8 clients, each request with a new prompt and a new picture.

"shapes" are Qwen2.5-VL, Qwen3-VL, InternVL and SmolVLM with 0.16 billion parameters; a request has a JPEG of 640x480
and 16 tokens (load W4). "large" are these, Gemma 3 and Mistral Small 3 with 0.5 billion, and half as many requests.
"tiny" are the tests' checkpoints, one for each family of ``mmserve models`` and Pixtral's; they show what a request
costs beside the model. All checkpoints are made here with random weights.

With --vllm DIR (DIR/venv-vllm is its environment) vLLM then serves the same checkpoints. One that it does not load is
named with the reason. "tower ms" and "decoding ms" are mmserve's own figures: time in the vision tower, and time of
decoding and resizing, divided by the number of pictures. "CPU s" is the CPU time of all processes of a server for each
request.

    python -m benchmarks.models
    python -m benchmarks.models --group shapes --vllm ~/peers --json models.json
    python -m benchmarks.models --only qwen3_vl --repeats 5
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.checkpoints.shapes import LARGE, SHAPES, SMALL, make_shape
from benchmarks.checkpoints.tiny import TINY
from benchmarks.images.frontend.histogram import growth
from benchmarks.load import report
from benchmarks.load.cpu import cpu_spent
from benchmarks.load.measure import RequestOptions, once
from benchmarks.load.memory import MIB, usage
from benchmarks.load.named import WORKLOADS
from benchmarks.load.server import Target
from benchmarks.load.workload import Workload
from benchmarks.peers.servers import OURS, PEERS, Capacity, Peer, Setup, for_load, started
from mmserve.checkpoint.registry import TEXT
from mmserve.monitoring.metrics.names import PREFIX

OF_VLLM = 1.3
"""Target: requests/s of a shape over vLLM's."""
_VLLM = "vllm"
_CLIENTS = 8
_TEXT = Workload("text", _CLIENTS, requests=96, prompt_words=32, output_tokens=16)
_PICTURE = dataclasses.replace(WORKLOADS["W4"], requests=96)
_FIGURES = (
    *("requests/s", "tokens/s", "TTFT p50 ms", "ITL p50 ms", "CPU s", "tower ms", "decoding ms"),
    *("prompt tokens", "PSS MiB", "ready s"),
)


class Model(NamedTuple):
    """A checkpoint, and the load that it gets."""

    name: str
    group: str
    load: Workload
    capacity: Capacity

    def make(self, directory: Path) -> Path:
        """Write the checkpoint below ``directory`` unless it is there."""
        path = directory / self.group / self.name
        if not (path / "config.json").exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            if self.group == "tiny":
                TINY[self.name](path)
            else:
                make_shape(path, self.name, LARGE if self.group == "large" else SMALL)
        return path


_TINY_CAPACITY = Capacity(512, 32)
"""Most of the tests' checkpoints have a context of 512 tokens."""
_SMALL_SHAPES = ("Qwen2.5-VL", "Qwen3-VL", "InternVL", "SmolVLM")
_LARGE_LOAD = dataclasses.replace(WORKLOADS["W4"], requests=16)
MODELS = (
    *(Model(name, "shapes", WORKLOADS["W4"], Capacity()) for name in _SMALL_SHAPES),
    *(Model(name, "large", _LARGE_LOAD, Capacity()) for name in SHAPES),
    *(Model(name, "tiny", _TEXT if name in TEXT.values() else _PICTURE, _TINY_CAPACITY) for name in TINY),
)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", choices=("shapes", "large", "tiny"), help="default: all")
    parser.add_argument("--only", action="append", choices=sorted({model.name for model in MODELS}), help="repeatable")
    parser.add_argument("--server", choices=(OURS, _VLLM), help="default: both")
    parser.add_argument("--vllm", type=Path, metavar="DIR", help="also measure the vLLM that is installed there")
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="keep checkpoints there, and use those it has")
    parser.add_argument("--serve-args", default="", help="more flags for mmserve")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, help="of each run, in place of 32 (shapes), 16 (large) and 96 (tiny)")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--port", type=int, default=8198)
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    return parser.parse_args()


def measure(peer: Peer, model: Model, path: Path, options: argparse.Namespace) -> report.Row:
    """Start the server, measure it, stop it. Raises RuntimeError if it does not start or a request fails."""
    setup = Setup(options.vllm, options.port, options.dtype, options.serve_args)
    load = dataclasses.replace(model.load, requests=options.requests or model.load.requests)
    with started(for_load(peer, load), path, model.capacity, setup) as (target, start_s):
        runs = [_run(target, load, seed) for seed in range(-1, options.repeats)][1:]
        assert target.pid is not None
        pss_mib = usage(target.pid).nbytes / MIB
    figures = report.median_row(runs) | {"PSS MiB": pss_mib, "ready s": start_s}
    return {"model": model.name, "server": peer.name} | {name: figures.get(name, "") for name in _FIGURES}


def _run(target: Target, load: Workload, seed: int) -> dict[str, float]:
    assert target.pid is not None
    with growth(target.url) as grown, cpu_spent(target.pid) as spent:
        figures = once(target, load, seed, RequestOptions())
    if figures["errors"]:
        raise RuntimeError(f"{target.name}: {figures['errors']:.0f} requests failed")
    shown = {
        "requests/s": figures["requests_per_s"],
        "tokens/s": figures["tokens_per_s"],
        "TTFT p50 ms": figures["ttft_p50_ms"],
        "ITL p50 ms": figures["itl_p50_ms"],
        "CPU s": sum(spent.values()) / figures["ok"],
        "prompt tokens": figures["prompt_tokens"],
    }
    return shown | (_of_pictures(grown) if target.name == OURS and load.images else {})


def _of_pictures(grown: Mapping[str, float]) -> dict[str, float]:
    """Milliseconds a picture, of the growth of mmserve's metrics."""
    encoded = grown[f"{PREFIX}mm_images_encoded_total"]
    return {
        "tower ms": grown[f"{PREFIX}mm_encode_seconds_sum"] / encoded * 1e3,
        "decoding ms": grown[f"{PREFIX}mm_decode_seconds_sum"] / encoded * 1e3,
    }


def ratios(rows: Sequence[report.Row]) -> list[report.Row]:
    """Our requests/s over vLLM's, with the target, for each shape that both served."""
    rates = {(row["model"], row["server"]): float(str(row["requests/s"])) for row in rows}
    return [
        report.at_least("requests/s over vllm's", str(name), rates[name, OURS] / rate, OF_VLLM)
        for (name, server), rate in rates.items()
        if server != OURS and (name, OURS) in rates
    ]


def main() -> int:
    """Measure all models, print a table for each group. Returns 1 if mmserve did not serve one of them."""
    options = arguments()
    chosen = [
        model
        for model in MODELS
        if options.group in (None, model.group) and (not options.only or model.name in options.only)
    ]
    offered = (OURS, _VLLM) if options.vllm else (OURS,)
    servers = [peer for peer in PEERS if peer.name in offered and options.server in (None, peer.name)]
    print(f"{report.machine()}; {options.dtype}; {_CLIENTS} clients; medians of {options.repeats}")
    every = list[report.Row]()
    with _directory(options.checkpoints) as directory:
        for group in dict.fromkeys(model.group for model in chosen):
            rows = list[report.Row]()
            for model in (model for model in chosen if model.group == group):
                rows += _measured(model, model.make(directory), servers, options)
            tables = [rows] if group == "tiny" else [rows, ratios(rows)]
            print(f"\n{group}\n\n" + "\n\n".join(report.table(table) for table in tables if table), flush=True)
            every += rows
    report.write_json(options.json, every)
    num_served = sum(row["server"] == OURS for row in every)
    return int(options.server != _VLLM and num_served < len(chosen))


def _measured(model: Model, path: Path, servers: Sequence[Peer], options: argparse.Namespace) -> Iterator[report.Row]:
    for peer in servers:
        print(f"{peer.name}: {model.name}", flush=True)
        try:
            yield measure(peer, model, path, options)
        except RuntimeError as error:
            print(f"  left out: {error}", flush=True)


@contextlib.contextmanager
def _directory(given: Path | None) -> Iterator[Path]:
    if given:
        yield given
    else:
        with tempfile.TemporaryDirectory() as made:
            yield Path(made)


if __name__ == "__main__":
    sys.exit(main())
