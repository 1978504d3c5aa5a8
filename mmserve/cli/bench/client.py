"""Sends streamed chat completions and records the times of their events.

Closed loop: N clients, each sends its next request when its last has ended. Open loop: every request is sent at a time
that was decided before the run, however late the server is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmserve.cli.bench.connection import BrokenConnection, Url, post


@dataclass
class Record:
    """One request as seen by the client. Times are seconds since it was sent, or should have been in an open loop;
    ``start_s``: that time, since the beginning of the run. ``late_s``: how late the client itself sent it.
    ``stages_ms``: where the time went, if the server says so."""

    ttft_s: float = 0.0
    end_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""
    start_s: float = 0.0
    late_s: float = 0.0
    stages_ms: dict[str, float] = field(default_factory=dict)


Body = dict[str, Any]


async def run(
    base_url: str,
    bodies: Iterable[Body],
    concurrency: int,
    timeout_s: float,
    api_key: str | None = None,
    on_end: Callable[[], object] = lambda: None,
) -> tuple[list[Record], float]:
    """Send all bodies to /v1/chat/completions; a client takes the next one when it is free. Returns the records and the
    wall time in seconds."""
    remaining = iter(bodies)
    records: list[Record] = []
    url, started_s = Url.parse(f"{base_url}/v1/chat/completions"), time.perf_counter()

    async def client() -> None:
        for body in remaining:
            record = Record(start_s=time.perf_counter() - started_s)
            records.append(record)
            await _send(record, url, json.dumps(body).encode(), time.perf_counter(), timeout_s, api_key)
            on_end()

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return records, time.perf_counter() - started_s


async def run_at(
    base_url: str,
    bodies: Sequence[Body],
    arrivals_s: Sequence[float],
    max_concurrency: int | None,
    timeout_s: float,
    api_key: str | None = None,
    on_end: Callable[[], object] = lambda: None,
) -> tuple[list[Record], float]:
    """Send each body at its time in seconds. With ``max_concurrency`` a request may wait for another to end, and that
    counts in its times. Returns the records and the wall time in seconds."""
    url = Url.parse(f"{base_url}/v1/chat/completions")
    payloads = [json.dumps(body).encode() for body in bodies]
    slots = contextlib.nullcontext() if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    started_s = time.perf_counter()

    async def one(payload: bytes, arrival_s: float, record: Record) -> None:
        await asyncio.sleep(max(0.0, started_s + arrival_s - time.perf_counter()))
        record.late_s = time.perf_counter() - started_s - arrival_s
        async with slots:
            await _send(record, url, payload, started_s + arrival_s, timeout_s, api_key)
        on_end()

    records = [Record(start_s=arrival_s) for arrival_s in arrivals_s]
    await asyncio.gather(*map(one, payloads, arrivals_s, records))
    return records, time.perf_counter() - started_s


async def _send(record: Record, url: Url, payload: bytes, from_s: float, timeout_s: float, api_key: str | None) -> None:
    """``from_s``: what the times count from."""
    reader = _Reader(record, from_s)
    try:
        async with asyncio.timeout(timeout_s):
            answered = await post(url, payload, api_key, reader.read)
        if answered.status != 200:
            record.error = f"{answered.status} {answered.content[:200].decode(errors='replace')}"
    except (BrokenConnection, OSError) as error:
        record.error = repr(error)[:200]
    except TimeoutError:
        record.error = f"no whole answer in {timeout_s:g} s"
    except ValueError:
        record.error = "the stream holds what is no JSON"
    record.end_s = time.perf_counter() - from_s
    if not record.ttft_s and not record.error:
        record.ttft_s = record.end_s


class _Reader:
    """Reads the lines of one stream, when they arrive."""

    def __init__(self, record: Record, from_s: float) -> None:
        self._record = record
        self._from_s = from_s
        self._last_s = from_s

    def read(self, line: bytes, now_s: float) -> None:
        """Raises ValueError for a line that is no JSON."""
        if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
            return
        record = self._record
        if not _update(record, json.loads(line[5:])):
            return
        if record.ttft_s:
            record.gaps_s.append(now_s - self._last_s)
        else:
            record.ttft_s = now_s - self._from_s
        self._last_s = now_s


def _update(record: Record, event: dict[str, Any]) -> bool:
    """Record usage, stages and errors of one event. True if the event has text."""
    if event.get("error"):
        record.error = str(event["error"])[:200]
    if usage := event.get("usage"):
        record.prompt_tokens = usage.get("prompt_tokens") or 0
        record.output_tokens = usage.get("completion_tokens") or 0
        record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    if isinstance(timing := event.get("timing"), dict):
        record.stages_ms = timing.get("stages_ms") or {}
    choices = event.get("choices") or []
    return bool(choices and (choices[0].get("delta") or {}).get("content"))
