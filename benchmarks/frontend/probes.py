"""One text stream and a /health probe, from a process of their own that nothing holds up, while a flood is on."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import TracebackType

import aiohttp

_HEALTH_INTERVAL_S = 0.05
_TOKENS = 400


@dataclass
class Seen:
    """Seconds between the events of the stream, and for each answer of /health."""

    gaps_s: list[float] = field(default_factory=list)
    health_s: list[float] = field(default_factory=list)


class Probes:
    """``with Probes(url, model) as seen: ...`` fills ``seen`` on exit."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model, self._seen = url, model, Seen()

    def __enter__(self) -> Seen:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(self._url, self._model, theirs), daemon=True)
        self._process.start()
        self._connection.recv()
        return self._seen

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.send(None)
        self._seen.gaps_s, self._seen.health_s = self._connection.recv()
        self._process.join()


def _main(url: str, model: str, connection: Connection) -> None:
    seen = asyncio.run(_probe(url, model, connection))
    connection.send((seen.gaps_s, seen.health_s))


async def _probe(url: str, model: str, connection: Connection) -> Seen:
    seen, begun = Seen(), asyncio.Event()
    async with aiohttp.ClientSession() as session:
        probes = [
            asyncio.create_task(_stream(session, url, model, seen, begun)),
            asyncio.create_task(_health(session, url, seen)),
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


async def _stream(session: aiohttp.ClientSession, url: str, model: str, seen: Seen, begun: asyncio.Event) -> None:
    message = {"role": "user", "content": "Tell a story."}
    body = json.dumps({"model": model, "messages": [message], "max_tokens": _TOKENS, "stream": True})
    while True:
        last_s = None
        async with session.post(f"{url}/v1/chat/completions", data=body) as response:
            response.raise_for_status()
            async for line in response.content:
                if b'"content":"' not in line or b'"content":""' in line:
                    continue
                now_s = time.perf_counter()
                if last_s is not None:
                    seen.gaps_s.append(now_s - last_s)
                    begun.set()
                last_s = now_s


async def _health(session: aiohttp.ClientSession, url: str, seen: Seen) -> None:
    while True:
        started_s = time.perf_counter()
        async with session.get(f"{url}/health") as response:
            await response.read()
        seen.health_s.append(time.perf_counter() - started_s)
        await asyncio.sleep(_HEALTH_INTERVAL_S)
