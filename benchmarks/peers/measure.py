"""One run of one load against one server, and of text beside pictures. Knows no medians and no other server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection

from benchmarks.load import report
from benchmarks.load.beside import beside
from benchmarks.load.client import Record, run
from benchmarks.load.memory import Peak
from benchmarks.load.server import Target
from benchmarks.load.workload import Workload, bodies
from benchmarks.memory.pictures import Body, Pictures
from benchmarks.peers.loads import LOADS, PICTURES, TEXT

REQUEST_WITHIN_S = 300
_EXTRA: dict[str, object] = {"ignore_eos": True}
Run = tuple[list[Record], float]
"""Records and wall time in seconds."""


def once(target: Target, load: Workload, seed: int, requests: int | None) -> dict[str, float]:
    """The figures of one run; with seed -1 each client sends one request. ``requests``: in place of the load's own."""
    count = load.concurrency if seed < 0 else requests or load.requests
    made = bodies(replace(load, requests=count), target.model, seed, _EXTRA)
    return _figures(target, *asyncio.run(run(target.url, made, load.concurrency, REQUEST_WITHIN_S)))


def mixed(target: Target, seed: int, requests: int | None) -> dict[str, float]:
    """The text alone, then the text while pictures go on for as long as it lasts; both texts are new to the server."""
    text = LOADS[TEXT]
    alone = once(target, text, seed, requests)
    flows: list[Run] = []
    with beside(_flow, (target, seed), flows.append):
        together = once(target, replace(text, name=f"{TEXT} beside {PICTURES}"), seed, requests)
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


def _flow(asked: tuple[Target, int], connection: Connection) -> Run:
    return asyncio.run(_pictures(*asked, connection))


async def _pictures(target: Target, seed: int, connection: Connection) -> Run:
    """The picture load's clients, each with picture after picture until told to end; no picture comes twice."""
    load = LOADS[PICTURES]
    width, height = load.image_size
    pictures = Pictures(load.requests, width, seed, height=height)
    connection.send(None)
    ending = asyncio.create_task(asyncio.to_thread(connection.recv))

    def until_told() -> Iterator[Body]:
        for body in pictures.endless(target.model, load.output_tokens):
            if ending.done():
                return
            yield body

    return await run(target.url, until_told(), load.concurrency, REQUEST_WITHIN_S)


def _figures(target: Target, records: list[Record], wall_s: float) -> dict[str, float]:
    for error in {record.error for record in records if record.error}:
        print(f"  {target.name}: {error}")
    row = report.row(records, wall_s, Peak())
    return {name: value for name, value in row.items() if name not in ("peak_mib", "growth_mib")}
