"""Sends one short text stream every 200 ms from a separate process, without waiting for earlier ones."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from benchmarks.load.beside import beside
from benchmarks.load.server import Target
from benchmarks.load.workload import Workload, bodies
from mmserve.cli.bench.client import Record, run

INTERVAL_S = 0.2
TIMEOUT_S = 120.0
_PROMPTS = 64
_TOKENS = 2


@contextmanager
def text_probe(target: Target) -> Iterator[list[Record]]:
    """Filled on exit, when the last stream has ended."""
    records: list[Record] = []
    with beside(_measure, target, records.extend):
        yield records


def _measure(target: Target, connection: Connection) -> list[Record]:
    connection.send(None)
    return asyncio.run(_probe(target, connection))


async def _probe(target: Target, connection: Connection) -> list[Record]:
    prompts = text_bodies(target.model, _PROMPTS, _TOKENS)
    ending = asyncio.create_task(asyncio.to_thread(connection.recv))
    streams: list[asyncio.Task[tuple[list[Record], float]]] = []
    while not ending.done():
        body = prompts[len(streams) % len(prompts)]
        streams.append(asyncio.create_task(run(target.url, [body], 1, TIMEOUT_S)))
        await asyncio.wait((ending,), timeout=INTERVAL_S)
    return [record for stream in streams for record in (await stream)[0]]


def text_bodies(model: str, count: int, tokens: int, seed: int = 0) -> list[dict[str, object]]:
    """Short, distinct prompts. Different seeds give different prompts."""
    return bodies(Workload("text probe", 1, count, prompt_words=4, output_tokens=tokens), model, seed, {})
