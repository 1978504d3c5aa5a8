"""One run of one load against one server; and one run of text beside pictures."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection

from benchmarks.load import report
from benchmarks.load.beside import beside
from benchmarks.load.named import Mixed
from benchmarks.load.server import Target
from benchmarks.load.workload import Workload, bodies
from benchmarks.memory.pictures import IGNORE_EOS, Body, Pictures
from mmserve.cli.bench.client import Record, run

TIMEOUT_S = 300.0
Run = tuple[list[Record], float]
"""Records and wall time in seconds."""


@dataclass(frozen=True)
class RequestOptions:
    """Settings of requests that do not depend on the load."""

    extra: Mapping[str, object] = field(default_factory=lambda: IGNORE_EOS)
    """Fields of every request."""
    timeout_s: float = TIMEOUT_S
    """Time limit of one request."""
    api_key: str | None = None


def once(target: Target, load: Workload, seed: int, request_options: RequestOptions) -> dict[str, float]:
    """The figures of one run. With a negative seed each client sends one request."""
    return _figures(target, *sent(target, load, seed, request_options))


def sent(target: Target, load: Workload, seed: int, request_options: RequestOptions) -> Run:
    """Send the requests of one run. Returns their records and the wall time."""
    workload = replace(load, requests=load.concurrency) if seed < 0 else load
    made = bodies(workload, target.model, seed, request_options.extra)
    return asyncio.run(run(target.url, made, load.concurrency, request_options.timeout_s, request_options.api_key))


def mixed(target: Target, load: Mixed, seed: int, request_options: RequestOptions) -> dict[str, float]:
    """The text load alone, then the text load while clients send pictures. Prompts of both are new to the server."""
    alone = once(target, load.text, seed, request_options)
    picture_runs: list[Run] = []
    with beside(_send_pictures, (target, load.pictures, seed, request_options), picture_runs.append):
        together = once(
            target, replace(load.text, name=f"{load.text.name} beside {load.pictures.name}"), seed, request_options
        )
    pictures = _figures(target, *picture_runs[0])
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
        "requests_per_s": together["requests_per_s"],
        "pictures_per_s": pictures["requests_per_s"],
        **{figure: together[figure] for figure in ("prompt_tokens", "cached_tokens")},
        **{f"picture_{figure}": pictures[figure] for figure in ("prompt_tokens", "cached_tokens")},
    }


def _send_pictures(arguments: tuple[Target, Workload, int, RequestOptions], connection: Connection) -> Run:
    return asyncio.run(_pictures(*arguments, connection))


async def _pictures(
    target: Target, load: Workload, seed: int, request_options: RequestOptions, connection: Connection
) -> Run:
    """The load's clients send pictures, at least one each, until the connection receives None. Every picture is new."""
    width, height = load.image_size
    pictures = Pictures(load.requests, width, seed, height=height, extra=request_options.extra)
    connection.send(None)
    ending = asyncio.create_task(asyncio.to_thread(connection.recv))

    def until_told() -> Iterator[Body]:
        endless = pictures.endless(target.model, load.output_tokens)
        yield from itertools.islice(endless, load.concurrency)
        yield from itertools.takewhile(lambda _: not ending.done(), endless)

    return await run(target.url, until_told(), load.concurrency, request_options.timeout_s, request_options.api_key)


def _figures(target: Target, records: list[Record], wall_s: float) -> dict[str, float]:
    for error in {record.error for record in records if record.error}:
        print(f"  {target.name}: {error}")
    return report.row(records, wall_s)
