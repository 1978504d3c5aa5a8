"""What a request costs in one HTTP worker: one token, in each protocol, with an engine that answers at once.

A real worker, cache server and supervisor run in front of a stub (``frontend/server.py``). One client after another
request gives the latency of a request; 64 clients give the requests/s, for a text of 1 KB and for a new picture of
100 KB. The limit is bare uvicorn, which reads the same bodies and answers ``{}``; both are measured in each round, and
their ratio is the median of the rounds. Clients and stub run on the same cores. "CPU us" is the time of the HTTP
worker's process for each request.

--vllm DIR also compares with vLLM, on the text alone: DIR holds venv-vllm and models/smollm2-noeos, of which one layer
with random weights is loaded, so that its engine takes little of the time. Both servers have the same tokenizer then.

    python -m benchmarks.processes.protocol
    python -m benchmarks.processes.protocol --vllm ~/peers --json protocol.json
    python -m benchmarks.processes.protocol --vllm ~/peers --no-bare
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import uvloop

from benchmarks.images.frontend.bare import bare
from benchmarks.images.frontend.bodies import Body
from benchmarks.images.frontend.flood import WARM_UP_S, Flood, FloodResult
from benchmarks.images.frontend.one_token import picture_bodies, served, text_bodies
from benchmarks.load.cpu import cpu_spent
from benchmarks.load.report import Row, at_least, at_most, machine, table, write_json
from benchmarks.load.server import Target, serve
from benchmarks.peers.servers import MODELS, PEERS, Capacity, Setup, started

CLIENTS = 64
TEXT_CHARS, PICTURE_NBYTES = 1000, 100_000
LATENCY_MS = 3.0
OF_BARE = 0.5
OF_VLLM = 2.0
_STUB = ("benchmarks.images.frontend.server",)
_WORKER = "httpserver 0"
_ONE_LAYER = ' --load-format dummy --hf-overrides {{"num_hidden_layers":1}}'


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", action="append", help="chat, completions, ...; repeatable; default: all")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement, after a warm-up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--serve-args", default="--mm-cache-gb 1", help="flags for the server")
    parser.add_argument("--vllm", type=Path, metavar="DIR", help="also compare with the vLLM that is installed there")
    parser.add_argument("--no-bare", action="store_true", help="leave out the comparison with bare uvicorn")
    parser.add_argument("--vllm-port", type=int, default=8109)
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    return parser.parse_args()


class Cost(NamedTuple):
    """Of one server and body: requests/s of all clients, CPU of the worker for each, latency of one client alone."""

    requests_per_s: float
    cpu_us: float
    latency_ms: float


_NUMBERS = itertools.count()
"""Numbers of this process's requests, which make every one new."""


def measure(target: Target, bodies: Sequence[Body], seconds: float, worker: str | None = None) -> Cost:
    """``worker``: the title of the process whose CPU counts; None: of all."""
    assert target.pid is not None
    alone = _flood(target, bodies[:1], seconds)
    with cpu_spent(target.pid) as spent:
        together = _flood(target, bodies, seconds)
    cpu_s = sum(spent.values()) if worker is None else spent[worker]
    latency_ms = statistics.median(alone.latencies_s) * 1e3
    return Cost(together.requests_per_s, cpu_s / together.all_requests * 1e6, latency_ms)


def _flood(target: Target, bodies: Sequence[Body], seconds: float) -> FloodResult:
    address = urlsplit(target.url)
    assert address.hostname is not None
    assert address.port is not None
    result = uvloop.run(Flood(address.hostname, address.port, bodies).run(seconds, _NUMBERS))
    if result.errors or not result.requests:
        raise RuntimeError(f"{target.name}: {len(result.errors)} errors, e.g. {result.errors[:1]}")
    return result


def beside_bare(options: argparse.Namespace) -> list[Row]:
    """One row for each protocol and kind of body."""
    found: dict[tuple[str, str], list[tuple[Cost, Cost]]] = {}
    with serve(*options.serve_args.split(), program=_STUB) as target:
        protocols = options.protocol or served(target.url)
        for number in range(options.rounds):
            for kind, make, size in (("text", text_bodies, TEXT_CHARS), ("picture", picture_bodies, PICTURE_NBYTES)):
                with bare() as uvicorn:
                    limit = measure(uvicorn, make(options.clients, "chat", target.model, size), options.seconds)
                for protocol in protocols:
                    if bodies := make(options.clients, protocol, target.model, size):
                        cost = measure(target, bodies, options.seconds, _WORKER)
                        found.setdefault((protocol, kind), []).append((cost, limit))
            print(f"round {number + 1}: done", flush=True)
    return [_row({"protocol": protocol, "body": kind}, "bare", pairs) for (protocol, kind), pairs in found.items()]


def beside_vllm(options: argparse.Namespace) -> list[Row]:
    """One row for each protocol that both servers offer."""
    vllm = next(peer for peer in PEERS if peer.name == "vllm")
    peer = dataclasses.replace(vllm, command=vllm.command + _ONE_LAYER)
    setup, capacity = Setup(options.vllm.resolve(), options.vllm_port, "bfloat16"), Capacity(2048, options.clients)
    model = setup.home / MODELS["text"]
    found: dict[str, list[tuple[Cost, Cost]]] = {}
    with (
        started(peer, model, capacity, setup) as (other, _),
        serve("--max-model-len", "2048", model=str(model), program=_STUB) as target,
    ):
        offered = served(other.url)
        for number in range(options.rounds):
            for protocol in (name for name in options.protocol or served(target.url) if name in offered):
                cost, limit = (
                    measure(
                        server, text_bodies(options.clients, protocol, server.model, TEXT_CHARS), options.seconds, who
                    )
                    for server, who in ((target, _WORKER), (other, None))
                )
                found.setdefault(protocol, []).append((cost, limit))
            print(f"round {number + 1} beside vLLM: done", flush=True)
    return [_row({"protocol": protocol, "body": "text"}, "vLLM", pairs) for protocol, pairs in found.items()]


def _row(row: Row, other: str, pairs: Sequence[tuple[Cost, Cost]]) -> Row:
    """Medians of the rounds. ``pairs``: this server's figures and those of the ``other``, of each round."""
    own, others = (Cost(*map(statistics.median, zip(*side, strict=True))) for side in zip(*pairs, strict=True))
    ratio = statistics.median(cost.requests_per_s / limit.requests_per_s for cost, limit in pairs)
    return row | {
        "requests/s": own.requests_per_s,
        f"{other} requests/s": others.requests_per_s,
        f"of {other}": ratio,
        "CPU us": own.cpu_us,
        f"{other} CPU us": others.cpu_us,
        "one client ms": own.latency_ms,
        f"{other} one client ms": others.latency_ms,
    }


def targets(rows: Sequence[Row]) -> list[Row]:
    """The targets beside the measured figures."""
    found: list[Row] = []
    for row in rows:
        setting = f"{row['protocol']}, {row['body']}"
        if row["body"] == "text" and "of bare" in row:
            found.append(at_most("one client, median ms", setting, float(str(row["one client ms"])), LATENCY_MS))
        for figure, limit in (("of bare", OF_BARE), ("of vLLM", OF_VLLM)):
            if figure in row:
                found.append(at_least(figure, setting, float(str(row[figure])), limit))
    return found


def main() -> None:
    options = arguments()
    tables = [] if options.no_bare else [beside_bare(options)]
    if options.vllm:
        tables.append(beside_vllm(options))
    rows = [row for each in tables for row in each]
    each = f"medians of {options.rounds}, {options.seconds:g} s each after {WARM_UP_S:g} s of warm-up"
    print(f"\n{machine()}; {options.clients} clients, {each}\n")
    print("\n\n".join(map(table, [*tables, targets(rows)])))
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
