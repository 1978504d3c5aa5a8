"""One run of one load against one server; and one run of text beside pictures."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection

from benchmarks.load import report
from benchmarks.load.beside import beside
from benchmarks.load.client import Record, run
from benchmarks.load.named import Mixed
from benchmarks.load.server import Target
from benchmarks.load.workload import Workload, bodies
from benchmarks.memory.pictures import IGNORE_EOS, Body, Pictures

TIMEOUT_S = 300.0
Run = tuple[list[Record], float]
"""Records and wall time in seconds."""


@dataclass(frozen=True)
class Asking:
    """How requests are sent, whatever the load."""

    extra: Mapping[str, object] = field(default_factory=lambda: IGNORE_EOS)
    """Fields of every request."""
    timeout_s: float = TIMEOUT_S
    """What one request may take."""
    api_key: str | None = None


def once(target: Target, load: Workload, seed: int, asking: Asking) -> dict[str, float]:
    """The figures of one run; with a negative seed each client sends one request."""
    return _figures(target, *sent(target, load, seed, asking))


def sent(target: Target, load: Workload, seed: int, asking: Asking) -> Run:
    """What came back in one run."""
    asked = replace(load, requests=load.concurrency) if seed < 0 else load
    made = bodies(asked, target.model, seed, asking.extra)
    return asyncio.run(run(target.url, made, load.concurrency, asking.timeout_s, asking.api_key))


def mixed(target: Target, load: Mixed, seed: int, asking: Asking) -> dict[str, float]:
    """The text alone, then the text while pictures go on for as long as it lasts; both texts are new to the server."""
    alone = once(target, load.text, seed, asking)
    flows: list[Run] = []
    with beside(_flow, (target, load.pictures, seed, asking), flows.append):
        together = once(target, replace(load.text, name=f"{load.text.name} beside {load.pictures.name}"), seed, asking)
    pictures = _figures(target, *flows[0])
    return {
        "ok": together["ok"],
        "errors": together["errors"] + alone["errors"] + pictures["errors"],
        "itl_p50_ms_alone": alone["itl_p50_ms"],
        "itl_p50_ms": together["itl_p50_ms"],
        "itl_over_alone": together["itl_p50_ms"] / alone["itl_p50_ms"],
        "itl_p99_ms": together["itl_p99_ms"],
        "ttft_p50_ms": together["ttft_p50_ms"],
        "tokens_per_s_alone": alone["tokens_per_s"],
        "tokens_per_s": together["tokens_per_s"],
        "pictures_per_s": pictures["requests_per_s"],
    }


def _flow(asked: tuple[Target, Workload, int, Asking], connection: Connection) -> Run:
    return asyncio.run(_pictures(*asked, connection))


async def _pictures(target: Target, load: Workload, seed: int, asking: Asking, connection: Connection) -> Run:
    """The load's clients, each with picture after picture, one at least, until told to end; no picture comes twice."""
    width, height = load.image_size
    pictures = Pictures(load.requests, width, seed, height=height, extra=asking.extra)
    connection.send(None)
    ending = asyncio.create_task(asyncio.to_thread(connection.recv))

    def until_told() -> Iterator[Body]:
        endless = pictures.endless(target.model, load.output_tokens)
        yield from itertools.islice(endless, load.concurrency)
        yield from itertools.takewhile(lambda _: not ending.done(), endless)

    return await run(target.url, until_told(), load.concurrency, asking.timeout_s, asking.api_key)


def _figures(target: Target, records: list[Record], wall_s: float) -> dict[str, float]:
    for error in {record.error for record in records if record.error}:
        print(f"  {target.name}: {error}")
    return report.row(records, wall_s)
