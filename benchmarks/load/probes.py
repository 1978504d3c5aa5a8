"""Probes during a load: repeated requests to the health endpoint, and one endless text stream.

They run in a process of their own, so that a busy client does not delay them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

import aiohttp

from benchmarks.load.beside import beside

_HEALTH_INTERVAL_S = 0.05
_TOKENS = 400
"""Of one answer; the next one is asked for when it ends."""


@dataclass
class Seen:
    """Seconds between the events of the stream, and for each answer of /health."""

    gaps_s: list[float] = field(default_factory=list)
    health_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Asked:
    """Whom the probes ask; ``extra`` fields go into the stream's request."""

    url: str
    model: str
    health_path: str = "/health"
    extra: Mapping[str, object] = field(default_factory=dict)


@contextmanager
def probes(asked: Asked) -> Iterator[Seen]:
    """Filled on exit; the stream flows when the block begins."""
    seen = Seen()

    def keep(found: Seen) -> None:
        seen.gaps_s, seen.health_s = found.gaps_s, found.health_s

    with beside(_measure, asked, keep):
        yield seen


def _measure(asked: Asked, connection: Connection) -> Seen:
    return asyncio.run(_probe(asked, connection))


async def _probe(asked: Asked, connection: Connection) -> Seen:
    seen, begun = Seen(), asyncio.Event()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        probes = [
            asyncio.create_task(_stream(session, asked, seen, begun)),
            asyncio.create_task(_health(session, asked, seen)),
        ]
        await begun.wait()
        connection.send(None)
        await asyncio.to_thread(connection.recv)
        for probe in probes:
            probe.cancel()
        await asyncio.wait(probes)
        for probe in probes:
            if not probe.cancelled():
                probe.result()
    return seen


async def _stream(session: aiohttp.ClientSession, asked: Asked, seen: Seen, begun: asyncio.Event) -> None:
    body = {
        "model": asked.model,
        "messages": [{"role": "user", "content": "Tell a story."}],
        "max_tokens": _TOKENS,
        "temperature": 0,
        "stream": True,
        **asked.extra,
    }
    while True:
        last_s = None
        async with session.post(f"{asked.url}/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: {") or not _has_text(line):
                    continue
                now_s = time.perf_counter()
                if last_s is not None:
                    seen.gaps_s.append(now_s - last_s)
                    begun.set()
                last_s = now_s


def _has_text(line: bytes) -> bool:
    choices = json.loads(line[6:]).get("choices") or []
    return bool(choices and (choices[0].get("delta") or {}).get("content"))


async def _health(session: aiohttp.ClientSession, asked: Asked, seen: Seen) -> None:
    while True:
        started_s = time.perf_counter()
        async with session.get(asked.url + asked.health_path) as response:
            await response.read()
            response.raise_for_status()
        seen.health_s.append(time.perf_counter() - started_s)
        await asyncio.sleep(_HEALTH_INTERVAL_S)
