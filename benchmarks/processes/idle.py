"""Cost of an idle server, and time until it is ready.

Starts ``mmserve serve`` --starts times, the first time without cached kernels. It sends some prompts to the last
server, so that the KV cache is in use, and then measures the idle server: CPU time, wake-ups and PSS of every
process. --cold-files also drops the checkpoint and torch from the file cache before the first start. --pid measures a
running server instead.

    python -m benchmarks.processes.idle --model DIR --serve-args "--kv-cache-gb 1" --seconds 60
    python -m benchmarks.processes.idle --pid 1234 --json idle.json
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.load import report
from benchmarks.load.cpu import cpu_use
from benchmarks.load.memory import MIB, usage
from benchmarks.load.server import Target, serve
from benchmarks.load.workload import Workload, bodies
from mmserve.cli.bench.client import run

READY_S, FIRST_READY_S = 3.0, 5.0
CPU_PERCENT = 1.0
PSS_MIB = 900.0
SETTLE_S = 3.0
_TIMEOUT_S = 300.0
_CACHE_VARIABLE = "XDG_CACHE_HOME"
"""Compiled kernels are kept below this directory."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pid", type=int, help="root of a server's process tree, in place of one started here")
    parser.add_argument("--model", default="llava", help="of the server that is started")
    parser.add_argument("--serve-args", default="--kv-cache-gb 1", help="flags for it; default: --kv-cache-gb 1")
    parser.add_argument("--starts", type=int, default=2, help="how often it is started")
    parser.add_argument("--cold-files", action="store_true", help="read checkpoint and torch from disk at first")
    parser.add_argument("--prompts", type=int, default=64, help="of 400 words each, sent before it is idle")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long it is watched")
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    return parser.parse_args()


def main() -> None:
    """Start, watch, print."""
    options = arguments()
    starts: list[report.Row] = []
    with contextlib.nullcontext(options.pid) if options.pid else _last_started(options, starts) as pid:
        time.sleep(SETTLE_S)
        processes = measure(pid, options.seconds)
    limits = [_check_start(row) for row in starts] + check_limits(processes)
    print(f"\n{report.machine()}; {options.model}, idle for {options.seconds:g} s")
    for rows in (processes, limits):
        print(f"\n{report.table(rows)}")
    report.write_json(options.json, [*starts, *processes, *limits])


def measure(pid: int, seconds: float) -> list[report.Row]:
    """One row for each process, the busiest first, and one for all. Memory is measured at the end."""
    found = cpu_use(pid, seconds)
    memory = usage(pid).by_process
    rows: list[report.Row] = [
        {
            "process": name,
            "cpu_percent": 100 * found[name].cpu_share if name in found else 0.0,
            "wakeups_per_s": found[name].wakeups_per_s if name in found else 0.0,
            "pss_mib": memory.get(name, 0) / MIB,
        }
        for name in sorted({**memory, **found}, key=lambda name: -found[name].cpu_share if name in found else 0.0)
    ]
    figures = ("cpu_percent", "wakeups_per_s", "pss_mib")
    return [*rows, {"process": "all"} | {name: sum(float(str(row[name])) for row in rows) for name in figures}]


def check_limits(processes: list[report.Row]) -> list[report.Row]:
    """The whole tree beside its limits. The limit of PSS is for the packaged model."""
    whole = processes[-1]
    return [
        report.at_most("% of a core", "idle", float(str(whole["cpu_percent"])), CPU_PERCENT),
        report.at_most("PSS MiB", "idle", float(str(whole["pss_mib"])), PSS_MIB),
    ]


def _check_start(start: report.Row) -> report.Row:
    limit = FIRST_READY_S if str(start["start"]).startswith("start 1") else READY_S
    return report.at_most("ready after s", str(start["start"]), float(str(start["ready_s"])), limit)


@contextlib.contextmanager
def _last_started(options: argparse.Namespace, starts: list[report.Row]) -> Iterator[int]:
    """The root process of the server that was started last, after its prompts. Adds a row per start to ``starts``."""
    if options.cold_files:
        _drop_file_cache(options.model)
    with contextlib.ExitStack() as stack:
        for number in range(options.starts):
            name = f"start {number + 1}" + (", kernels not compiled yet" if number == 0 else "")
            with contextlib.ExitStack() as server:
                with _no_kernels() if number == 0 else contextlib.nullcontext():
                    started_s = time.perf_counter()
                    target = server.enter_context(serve(*options.serve_args.split(), model=options.model))
                starts.append({"start": name, "ready_s": time.perf_counter() - started_s})
                print(f"{name}: ready", flush=True)
                if number == options.starts - 1:
                    stack.push(server.pop_all())
        _send_prompts(target, options.prompts)
        assert target.pid is not None
        yield target.pid


@contextlib.contextmanager
def _no_kernels() -> Iterator[None]:
    """A server that is started in the block finds no compiled kernels."""
    before = os.environ.get(_CACHE_VARIABLE)
    with tempfile.TemporaryDirectory() as directory:
        os.environ[_CACHE_VARIABLE] = directory
        try:
            yield
        finally:
            del os.environ[_CACHE_VARIABLE]
            if before is not None:
                os.environ[_CACHE_VARIABLE] = before


def _drop_file_cache(model: str) -> None:
    """Drop the checkpoint and torch's libraries from the file cache, except pages that a process has mapped."""
    torch = importlib.util.find_spec("torch")
    folders = [Path(model), *map(Path, torch.submodule_search_locations or () if torch else ())]
    for path in (path for folder in folders if folder.is_dir() for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _send_prompts(target: Target, num_prompts: int) -> None:
    load = Workload("before", min(8, num_prompts), num_prompts, prompt_words=400, output_tokens=1)
    records, _ = asyncio.run(run(target.url, bodies(load, target.model, 0, {}), load.concurrency, _TIMEOUT_S))
    for error in {record.error for record in records if record.error}:
        print(f"  {error}")


if __name__ == "__main__":
    main()
