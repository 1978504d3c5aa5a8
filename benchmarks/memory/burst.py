"""A burst against one server: all clients at once, one picture each. Measures memory, rates and a text stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.load.memory import MIB, Peak, sampled
from benchmarks.load.report import percentile
from benchmarks.load.server import Target
from benchmarks.memory.gauges import LEAKS, PEAKS, scrape
from benchmarks.memory.memory_guard import MemoryGuard
from benchmarks.memory.pictures import Body, Pictures
from benchmarks.memory.text_probe import text_probe
from mmserve.cli.bench.client import Record, run

TIMEOUT_S = 600.0
IDLE_S = 4.0
SETTLE_S = 1.0
_PARTS = {
    "front_mib": ("httpserver", "front"),
    "encoder_mib": ("visualserver", "engine"),
    "ranks_mib": ("model_backend",),
}
"""Column -> prefixes of the titles of its processes."""


@dataclass(frozen=True)
class Burst:
    """Records of the clients and the text streams of one run, and the server's memory."""

    records: Sequence[Record]
    wall_s: float
    idle_texts: Sequence[Record]
    texts: Sequence[Record]
    peak: Peak

    def row(self) -> dict[str, float]:
        """Times in ms, memory in MiB above idle; ``per_request``: divided by the number of clients."""
        for error in {record.error for record in [*self.records, *self.texts] if record.error}:
            print(f"  {error}")
        good = [record for record in self.records if not record.error]
        ttft_ms = [record.ttft_s * 1e3 for record in good]
        growth = self.peak.growth_nbytes / MIB
        return {
            "ok": len(good),
            "requests_per_s": len(good) / self.wall_s,
            "ttft_p50_ms": percentile(ttft_ms, 0.5),
            "ttft_p99_ms": percentile(ttft_ms, 0.99),
            "text_idle_p99_ms": _ttft_p99_ms(self.idle_texts),
            "text_p99_ms": _ttft_p99_ms(self.texts),
            "growth_mib": growth,
            "growth_mib_per_request": growth / len(self.records),
        } | self._parts()

    def _parts(self) -> dict[str, float]:
        grown = self.peak.growth_by_process()
        return {
            column: sum(nbytes for name, nbytes in grown.items() if name.startswith(prefixes)) / MIB
            for column, prefixes in _PARTS.items()
        }


def _ttft_p99_ms(texts: Sequence[Record]) -> float:
    return percentile([record.ttft_s * 1e3 for record in texts if not record.error], 0.99)


def warm_up(target: Target, pictures: Pictures) -> None:
    """One request, then SETTLE_S for memory that is returned late."""
    asyncio.run(run(target.url, pictures.bodies(target.model, 1, 1), 1, TIMEOUT_S))
    time.sleep(SETTLE_S)


def measure(target: Target, bodies: Sequence[Body]) -> Burst:
    """Send all ``bodies`` at once to a warm, idle server. Raises OutOfMemory."""
    with text_probe(target) as idle_texts:
        time.sleep(IDLE_S)
    with MemoryGuard(target.pid), text_probe(target) as texts, sampled(target.pid) as peak:
        records, wall_s = asyncio.run(run(target.url, bodies, len(bodies), TIMEOUT_S))
    return Burst(records, wall_s, idle_texts, texts, peak)


def own_figures(target: Target) -> dict[str, float]:
    """Figures from mmserve's metrics: peak of compressed bytes in the arena, MiB, and leaked leases."""
    samples = scrape(target.url)
    data = samples.get(PEAKS + '{budget="data"}')
    figures = {"lease_leaks": sum(value for name, value in samples.items() if name.startswith(LEAKS))}
    return figures | ({} if data is None else {"arena_data_mib": data / MIB})
