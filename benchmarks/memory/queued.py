"""One text request at a time while a queue of image requests is kept full: the latency of the text requests."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import suppress

from benchmarks.load.report import Row, at_most, percentile
from benchmarks.load.server import Target
from benchmarks.memory.burst import TIMEOUT_S
from benchmarks.memory.endurance import closed_loop
from benchmarks.memory.gauges import Samples, scrape
from benchmarks.memory.pictures import Pictures
from benchmarks.memory.text_probe import text_bodies
from mmserve.cli.bench.client import Record, run

_TEXTS = 100
_PAUSE_S = 0.1
_FILLING_S = 5.0
_TIMES_IDLE = 1.5
_BATCH = "mmserve:mm_encode_seconds"


def check(target: Target, pictures: Pictures, queued: int) -> tuple[list[Row], list[Row]]:
    """TTFT of text, idle and with the queue, and the target: p99 at most 1.5 times idle's plus one encoder batch."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as other:
        other.submit(_texts, target, 0).result()
        idle = other.submit(_texts, target, 1).result()
        before = scrape(target.url)
        busy = asyncio.run(_beside(target, pictures, queued, other))
    after = scrape(target.url)
    batches = _grown(f"{_BATCH}_count", before, after)
    batch_ms = _grown(f"{_BATCH}_sum", before, after) / batches * 1e3 if batches else 0.0
    print(f"one encoder batch: {batch_ms:.0f} ms on average of {batches:.0f}")
    rows = [_row("idle", idle), _row(f"{queued} image requests queued", busy)]
    limit_ms = _TIMES_IDLE * percentile(_ttft_ms(idle), 0.99) + batch_ms
    return rows, [at_most("text TTFT p99 ms", f"{queued} queued", percentile(_ttft_ms(busy), 0.99), limit_ms)]


def _texts(target: Target, seed: int) -> list[Record]:
    """Send texts one after another with pauses. Runs in a separate process, so the images' client does not delay it."""
    return asyncio.run(_spaced(target, text_bodies(target.model, _TEXTS, 1, seed)))


async def _spaced(target: Target, bodies: Sequence[dict[str, object]]) -> list[Record]:
    records = []
    for body in bodies:
        records += (await run(target.url, [body], 1, TIMEOUT_S))[0]
        await asyncio.sleep(_PAUSE_S)
    return records


async def _beside(target: Target, pictures: Pictures, queued: int, other: Executor) -> list[Record]:
    images = asyncio.create_task(closed_loop(target, pictures, queued, float("inf")))
    await asyncio.sleep(_FILLING_S)
    texts = await asyncio.get_running_loop().run_in_executor(other, _texts, target, 2)
    images.cancel()
    with suppress(asyncio.CancelledError):
        await images
    return texts


def _grown(name: str, before: Samples, after: Samples) -> float:
    return after.get(name, 0.0) - before.get(name, 0.0)


def _ttft_ms(texts: Sequence[Record]) -> list[float]:
    return [record.ttft_s * 1e3 for record in texts if not record.error]


def _row(load: str, texts: Sequence[Record]) -> Row:
    ttft_ms = _ttft_ms(texts)
    return {"load": load, "ok": len(ttft_ms)} | {f"TTFT p{q} ms": percentile(ttft_ms, q / 100) for q in (50, 90, 99)}
