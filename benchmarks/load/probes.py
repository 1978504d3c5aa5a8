"""What other users feel while a load runs: the health endpoint asked again and again, and one text stream without end.

Probes run in their own event loop, apart from the clients that make the load, so that a busy client is not measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp

HEALTH_INTERVAL_S = 0.05
STREAM_TOKENS = 200


@dataclass
class Felt:
    """Seconds: answer times of the health endpoint, and gaps between events with text of the stream."""

    health_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)


@contextlib.asynccontextmanager
async def probing(base_url: str, model: str, health_path: str, extra: dict[str, object]) -> AsyncIterator[Felt]:
    """Probes run while the context is open; ``extra`` fields go into the stream's request."""
    felt = Felt()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        tasks = [
            asyncio.create_task(_ask_health(session, base_url + health_path, felt.health_s)),
            asyncio.create_task(_follow_text(session, base_url, model, extra, felt.gaps_s)),
        ]
        try:
            yield felt
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result


async def _ask_health(session: aiohttp.ClientSession, url: str, times_s: list[float]) -> None:
    while True:
        started = time.perf_counter()
        async with session.get(url) as response:
            await response.read()
            response.raise_for_status()
        times_s.append(time.perf_counter() - started)
        await asyncio.sleep(HEALTH_INTERVAL_S)


async def _follow_text(
    session: aiohttp.ClientSession, base_url: str, model: str, extra: dict[str, object], gaps_s: list[float]
) -> None:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello! What can you do?"}],
        "max_tokens": STREAM_TOKENS,
        "temperature": 0,
        "stream": True,
        **extra,
    }
    while True:
        async with session.post(f"{base_url}/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            last = None
            async for line in response.content:
                if not line.startswith(b"data: {") or not _has_token(line):
                    continue
                now = time.perf_counter()
                if last is not None:
                    gaps_s.append(now - last)
                last = now


def _has_token(line: bytes) -> bool:
    choices = json.loads(line[6:]).get("choices") or []
    return bool(choices and (choices[0].get("delta") or {}).get("content"))
