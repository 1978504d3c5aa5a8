"""The same load for minutes: is the memory at the end what it was after the first minute?"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence

from benchmarks.load.memory import MIB, SHARED, Peak, Usage, sampled
from benchmarks.load.report import Row, at_most
from benchmarks.load.server import Target
from benchmarks.memory.burst import TIMEOUT_S
from benchmarks.memory.memory_guard import MemoryGuard
from benchmarks.memory.pictures import Pictures
from mmserve.cli.bench.client import Record, run

_REQUESTS_A_CONNECTION = 4
_FIRST_S = 60.0
_WINDOW_S = 20.0
"""Memory varies under load, so medians over this time are compared."""
_LINES = 10
_DRIFT = 1.03


async def closed_loop(target: Target, pictures: Pictures, clients: int, until_s: float) -> list[Record]:
    """``clients`` connections, each sends its next request when the last has ended, until ``until_s`` (monotonic)."""
    bodies = pictures.endless(target.model, 1)
    records: list[Record] = []

    async def client() -> None:
        while time.monotonic() < until_s:
            few = [next(bodies) for _ in range(_REQUESTS_A_CONNECTION)]
            records.extend((await run(target.url, few, 1, TIMEOUT_S))[0])

    await asyncio.gather(*(client() for _ in range(clients)))
    return records


def check(target: Target, pictures: Pictures, clients: int, minutes: float) -> tuple[list[Row], list[Row]]:
    """Returns memory over time in MiB by process, and the target: at most 3 % more than after the first minute."""
    with MemoryGuard(target.pid), sampled(target.pid) as peak:
        started_s = time.monotonic()
        records = asyncio.run(closed_loop(target, pictures, clients, started_s + minutes * 60))
    failed = {record.error for record in records if record.error}
    print(f"{len(records)} requests, {sum(bool(record.error) for record in records)} failed {sorted(failed)[:3]}")
    first = min(_FIRST_S, minutes * 30)
    # Clients end their last requests at different times, so the last window ends before that.
    times = [first + (minutes * 60 - first) * line / (_LINES - 1) for line in range(_LINES)]
    rows = [_row(peak, at_s) for at_s in times]
    setting = f"{clients} clients, {minutes:g} min"
    return rows, [
        at_most("end / first minute", setting, _grown(rows[0], rows[-1], ()), _DRIFT),
        at_most("the same without ranks", setting, _grown(rows[0], rows[-1], ("model_backend",)), _DRIFT),
    ]


def _grown(first: Row, last: Row, without: tuple[str, ...]) -> float:
    """Memory of ``last`` over ``first``. ``without``: titles to leave out (ranks touch the pages of their KV cache only
    at first use, up to --kv-cache-gb)."""

    def mib(row: Row) -> float:
        left_out = (value for name, value in row.items() if name.startswith(without))
        return float(str(row["MiB"])) - sum(float(str(value)) for value in left_out)

    return mib(last) / mib(first)


def _row(peak: Peak, at_s: float) -> Row:
    window = [usage for second, usage in peak.series if at_s - _WINDOW_S < second <= at_s]
    names = sorted({name for usage in window for name in usage.by_process} - {SHARED})
    row: Row = {"after s": round(at_s), "MiB": statistics.median(usage.nbytes for usage in window) / MIB}
    return row | {name: _median_mib(window, name) for name in [*names, SHARED]}


def _median_mib(window: Sequence[Usage], name: str) -> float:
    return statistics.median(usage.by_process.get(name, 0) for usage in window) / MIB
