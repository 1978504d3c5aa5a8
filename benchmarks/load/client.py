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
    """One request as the client saw it; times in seconds from its sending."""

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
    """Send all bodies to /v1/chat/completions, each drawn when a client is free; the records, and the wall time in
    seconds."""
    waiting = iter(bodies)
    records: list[Record] = []
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    # A connection each: llama-server closes its own after a stream, without saying so.
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector, headers=headers) as session:

        async def worker() -> None:
            for body in waiting:
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
                if _take(record, json.loads(line[5:])):
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


def _take(record: Record, event: dict) -> bool:
    """Note usage and errors of one event; True when it brought text."""
    if event.get("error"):
        record.error = str(event["error"])[:200]
    if usage := event.get("usage"):
        record.prompt_tokens = usage.get("prompt_tokens") or 0
        record.output_tokens = usage.get("completion_tokens") or 0
        record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    choices = event.get("choices") or []
    return bool(choices and (choices[0].get("delta") or {}).get("content"))
