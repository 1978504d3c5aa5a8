"""One short text stream every 200 ms, whatever becomes of the ones before, from a process of its own."""

from __future__ import annotations

import asyncio
import multiprocessing
from multiprocessing.connection import Connection
from types import TracebackType

from benchmarks.load.client import Record, run
from benchmarks.load.server import Target
from benchmarks.load.workload import Workload, bodies

INTERVAL_S = 0.2
TIMEOUT_S = 120.0
_PROMPTS = 64
_TOKENS = 2


class TextProbe:
    """``with TextProbe(target) as records: ...`` fills ``records`` on exit, when the last stream has ended."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._records: list[Record] = []

    def __enter__(self) -> list[Record]:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(self._target, theirs), daemon=True)
        self._process.start()
        self._connection.recv()
        return self._records

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.send(None)
        self._records += self._connection.recv()
        self._process.join()


def _main(target: Target, connection: Connection) -> None:
    connection.send(None)
    connection.send(asyncio.run(_probe(target, connection)))


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
    """Short prompts, each different, others for each seed."""
    return bodies(Workload("text probe", 1, count, prompt_words=4, output_tokens=tokens), model, seed, {})
