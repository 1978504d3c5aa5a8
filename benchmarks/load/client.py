"""A closed-loop client: N workers, each sends its next request when the last has ended. Records the times of events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import aiohttp


@dataclass
class Record:
    """One request as seen by the client. Times are seconds since it was sent."""

    ttft_s: float = 0.0
    end_s: float = 0.0
    gaps_s: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""


async def run(
    base_url: str, bodies: Iterable[dict[str, object]], concurrency: int, timeout_s: float, api_key: str | None = None
) -> tuple[list[Record], float]:
    """Send all bodies to /v1/chat/completions; a client takes the next one when it is free. Returns the records and the
    wall time in seconds."""
    remaining = iter(bodies)
    records: list[Record] = []
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    # One connection per request: llama-server closes connections after a stream without announcing it.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers) as session:

        async def worker() -> None:
            for body in remaining:
                records.append(await _one(session, f"{base_url}/v1/chat/completions", body))

        started = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(concurrency)))
        return records, time.perf_counter() - started


async def _one(session: aiohttp.ClientSession, url: str, body: dict[str, object]) -> Record:
    record = Record()
    payload = json.dumps(body).encode()
    started = last = time.perf_counter()
    try:
        async with session.post(url, data=payload, headers={"Content-Type": "application/json"}) as response:
            if response.status != 200:
                record.error = f"{response.status} {(await response.text())[:200]}"
                return record
            async for line in response.content:
                if not line.startswith(b"data:") or line[5:].strip() == b"[DONE]":
                    continue
                now = time.perf_counter()
                if _update(record, json.loads(line[5:])):
                    if record.ttft_s:
                        record.gaps_s.append(now - last)
                    else:
                        record.ttft_s = now - started
                    last = now
    except (aiohttp.ClientError, TimeoutError) as error:
        record.error = repr(error)[:200]
    record.end_s = time.perf_counter() - started
    if not record.ttft_s and not record.error:
        record.ttft_s = record.end_s
    return record


def _update(record: Record, event: dict) -> bool:
    """Record usage and errors of one event. True if the event has text."""
    if event.get("error"):
        record.error = str(event["error"])[:200]
    if usage := event.get("usage"):
        record.prompt_tokens = usage.get("prompt_tokens") or 0
        record.output_tokens = usage.get("completion_tokens") or 0
        record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    choices = event.get("choices") or []
    return bool(choices and (choices[0].get("delta") or {}).get("content"))
