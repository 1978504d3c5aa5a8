"""mmserve beside the servers a user would pick instead, on this machine: each alone, in turn, with the same loads.

    python -m benchmarks.vs_peers --peers DIR [--only W1 --only W4] [--repeats 3] [--dtype float32] [--json FILE]

DIR holds models/smollm2-noeos and models/llava-rand, and whichever peers are installed: venv-vllm (vLLM),
llamacpp/build/bin/llama-server with models/smollm2-f16.gguf. A peer that is missing is left out and named.

W1 one client, 128 words in and 128 tokens out. W2 16 clients, 256 in, 64 out. W3 8 clients, a shared prefix of 1,000
words, 16 out. W4 8 clients, 32 different 640x480 JPEGs, 16 out. W5 the same with 4 pictures. W6 W2 and W4 together:
its times are those of the text. Ratios are ours over the peer's.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.load import report
from benchmarks.load.client import Record, run
from benchmarks.load.memory import MIB, Peak, usage_nbytes
from benchmarks.load.server import Target
from benchmarks.load.workload import Workload, bodies

LOADS = {
    load.name: load
    for load in (
        Workload("W1", concurrency=1, requests=2, prompt_words=128, output_tokens=128),
        Workload("W2", concurrency=16, requests=64, prompt_words=256, output_tokens=64),
        Workload("W3", concurrency=8, requests=32, prompt_words=16, output_tokens=16, shared_prefix_words=1000),
        Workload("W4", concurrency=8, requests=32, prompt_words=6, output_tokens=16, images=1),
        Workload("W5", concurrency=8, requests=32, prompt_words=6, output_tokens=16, images=1, image_pool=4),
    )
}
MIXED = "W6"
MODELS = {"text": "models/smollm2-noeos", "llava": "models/llava-rand"}
LOADS_OF = {"text": ("W1", "W2", "W3"), "llava": ("W4", "W5", MIXED)}
START_WITHIN_S = 300
REQUEST_WITHIN_S = 300
_EXTRA: dict[str, object] = {"ignore_eos": True}
_HIGHER_IS_BETTER = ("tokens_per_s", "requests_per_s")
_LOWER_IS_BETTER = ("ttft_p50_ms", "itl_p50_ms")


@dataclass(frozen=True)
class Peer:
    """How a server is started: ``command`` is formatted with home, model, port and dtype; its first word must exist."""

    name: str
    command: str
    models: tuple[str, ...] = ("text", "llava")
    environment: dict[str, str] = field(default_factory=dict)
    preload: tuple[str, ...] = ()
    """Libraries it is meant to run with, those that exist."""


OURS = "mmserve"
PEERS = (
    Peer(
        OURS,
        f"{sys.executable} -m mmserve serve --model {{home}}/{{model}} --served-model-name m --port {{port}} "
        "--dtype {dtype} --kv-cache-gb 1 --max-model-len 2048",
    ),
    Peer(
        "vllm",
        "{home}/venv-vllm/bin/vllm serve {home}/{model} --served-model-name m --port {port} --host 127.0.0.1 "
        "--dtype {dtype} --max-model-len 2048 --max-num-seqs 32 --enforce-eager",
        environment={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},
        preload=("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4", "{home}/venv-vllm/lib/libiomp5.so"),
    ),
    Peer(
        "llama.cpp",
        "{home}/llamacpp/build/bin/llama-server -m {home}/models/smollm2-f16.gguf --host 127.0.0.1 --port {port} "
        "-np 16 -c 32768 --no-webui",
        models=("text",),
    ),
)


def main() -> None:
    """Measure all peers with all loads, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", required=True, type=Path, metavar="DIR", help="where models and peers are")
    parser.add_argument("--only", action="append", choices=[*LOADS, MIXED], help="one load; repeatable")
    parser.add_argument("--server", action="append", choices=[peer.name for peer in PEERS], help="repeatable")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--requests", type=int, help="of each load, in place of its own number")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--port", type=int, default=8199)
    parser.add_argument("--json", help="also write the rows here")
    options = parser.parse_args()
    rows = [row for kind in MODELS for peer in _chosen(options) for row in _measure(peer, kind, options)]
    print(f"\n{report.machine()}; {options.dtype}; medians of {options.repeats}\n\n{report.table(rows)}")
    print(f"\n{report.table(ratios(rows))}")
    report.write_json(options.json, rows)


def ratios(rows: list[report.Row]) -> list[report.Row]:
    """Ours over each peer's, for every load that both have."""
    ours = {row["load"]: row for row in rows if row["server"] == OURS}
    figures = (*_HIGHER_IS_BETTER, *_LOWER_IS_BETTER, "start_s", "pss_mib")
    return [
        {"load": row["load"], "ours over": row["server"]}
        | {figure: _number(ours[row["load"]][figure]) / (_number(row[figure]) or float("nan")) for figure in figures}
        for row in rows
        if row["server"] != OURS and row["load"] in ours
    ] or [{"load": "no peer was measured"}]


def _number(value: object) -> float:
    assert isinstance(value, float | int)
    return float(value)


def _chosen(options: argparse.Namespace) -> Iterator[Peer]:
    for peer in PEERS:
        if options.server and peer.name not in options.server:
            continue
        if Path(peer.command.split()[0].format(home=options.peers)).exists():
            yield peer
        else:
            print(f"{peer.name} is not installed: left out")


def _measure(peer: Peer, kind: str, options: argparse.Namespace) -> Iterator[report.Row]:
    names = [name for name in LOADS_OF[kind] if not options.only or name in options.only]
    if kind not in peer.models or not names:
        return
    with _started(peer, kind, options) as (target, start_s):
        assert target.pid is not None
        for name in names:
            print(f"{peer.name}: {name}", flush=True)
            _once(target, name, options, seed=-1)
            runs = [_once(target, name, options, seed=repeat) for repeat in range(options.repeats)]
            row = report.median_row(runs)
            del row["peak_mib"], row["growth_mib"]
            pss_mib = usage_nbytes(target.pid) / MIB
            yield {"load": name, "server": peer.name, **row, "start_s": start_s, "pss_mib": pss_mib}


def _once(target: Target, name: str, options: argparse.Namespace, seed: int) -> dict[str, float]:
    texts, wall_s = asyncio.run(_mixed(target, options, seed) if name == MIXED else _run(target, name, options, seed))
    for error in {record.error for record in texts if record.error}:
        print(f"  {target.name}: {error}")
    return report.row(texts, wall_s, Peak())


async def _run(target: Target, name: str, options: argparse.Namespace, seed: int) -> tuple[list[Record], float]:
    load = LOADS[name]
    requests = load.concurrency if seed < 0 else options.requests or load.requests
    made = bodies(replace(load, requests=requests), target.model, seed, _EXTRA)
    return await run(target.url, made, load.concurrency, REQUEST_WITHIN_S)


async def _mixed(target: Target, options: argparse.Namespace, seed: int) -> tuple[list[Record], float]:
    texts, _ = await asyncio.gather(_run(target, "W2", options, seed), _run(target, "W4", options, seed))
    return texts


@contextlib.contextmanager
def _started(peer: Peer, kind: str, options: argparse.Namespace) -> Iterator[tuple[Target, float]]:
    """The server and how long its start took, in seconds. Raises RuntimeError when it does not come up."""
    values = {"home": options.peers, "model": MODELS[kind], "port": options.port, "dtype": options.dtype}
    preload = [path for path in (text.format(**values) for text in peer.preload) if Path(path).exists()]
    environment = os.environ | peer.environment | ({"LD_PRELOAD": ":".join(preload)} if preload else {})
    command, url = peer.command.format(**values).split(), f"http://127.0.0.1:{options.port}"
    began_s = time.perf_counter()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not _answers(f"{url}/health"):
                if process.poll() is not None or time.perf_counter() - began_s > START_WITHIN_S:
                    raise RuntimeError(f"{peer.name} does not start: {' '.join(command)}")
                time.sleep(0.1)
            yield Target(peer.name, url, "m", process.pid), time.perf_counter() - began_s
        finally:
            process.terminate()
            process.wait(60)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    main()
