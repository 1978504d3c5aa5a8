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
"""Length of one answer. The next request is sent when it ends."""


@dataclass
class ProbeTimes:
    """Seconds between events of the stream, and seconds until each answer of /health."""

    gaps_s: list[float] = field(default_factory=list)
    health_s: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class ProbeTarget:
    """The server that is probed. ``extra`` fields go into the stream's request."""

    url: str
    model: str
    health_path: str = "/health"
    extra: Mapping[str, object] = field(default_factory=dict)


@contextmanager
def probes(target: ProbeTarget) -> Iterator[ProbeTimes]:
    """Probe during the block; the result is complete on exit. The stream has started when the block is entered."""
    times = ProbeTimes()

    def keep(found: ProbeTimes) -> None:
        times.gaps_s, times.health_s = found.gaps_s, found.health_s

    with beside(_measure, target, keep):
        yield times


def _measure(target: ProbeTarget, connection: Connection) -> ProbeTimes:
    return asyncio.run(_probe(target, connection))


async def _probe(target: ProbeTarget, connection: Connection) -> ProbeTimes:
    times, streaming = ProbeTimes(), asyncio.Event()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        probes = [
            asyncio.create_task(_stream(session, target, times, streaming)),
            asyncio.create_task(_health(session, target, times)),
        ]
        await streaming.wait()
        connection.send(None)
        await asyncio.to_thread(connection.recv)
        for probe in probes:
            probe.cancel()
        await asyncio.wait(probes)
        for probe in probes:
            if not probe.cancelled():
                probe.result()
    return times


async def _stream(
    session: aiohttp.ClientSession, target: ProbeTarget, times: ProbeTimes, streaming: asyncio.Event
) -> None:
    body = {
        "model": target.model,
        "messages": [{"role": "user", "content": "Tell a story."}],
        "max_tokens": _TOKENS,
        "temperature": 0,
        "stream": True,
        **target.extra,
    }
    while True:
        last_s = None
        async with session.post(f"{target.url}/v1/chat/completions", json=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if not line.startswith(b"data: {") or not _has_text(line):
                    continue
                now_s = time.perf_counter()
                if last_s is not None:
                    times.gaps_s.append(now_s - last_s)
                    streaming.set()
                last_s = now_s


def _has_text(line: bytes) -> bool:
    choices = json.loads(line[6:]).get("choices") or []
    return bool(choices and (choices[0].get("delta") or {}).get("content"))


async def _health(session: aiohttp.ClientSession, target: ProbeTarget, times: ProbeTimes) -> None:
    while True:
        started_s = time.perf_counter()
        async with session.get(target.url + target.health_path) as response:
            await response.read()
            response.raise_for_status()
        times.health_s.append(time.perf_counter() - started_s)
        await asyncio.sleep(_HEALTH_INTERVAL_S)
