"""A soak test: half an hour of mixed traffic at 80 % of what the server can do. Nothing may grow or slow down.

    python -m benchmarks.soak --minutes 30

Measures the capacity with as many clients as answers can use, then sends requests at random times at 80 % of that rate:
text, new and repeated pictures, one and two of them, streamed or not. Of all requests 20 % are aborted by their client
half-way and 5 % are malformed. Exits with 1 if a good request failed, a malformed one was not refused with a 4xx, the
memory of all processes grew by more than 3 % after the first two fifths, the p99 latency of the last fifth is more than
10 % above that of the first, or something was not given back.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Literal

import aiohttp
import pybase64

from benchmarks.load.server import serve
from benchmarks.load.workload import jpeg, words
from mmserve.chaos.leftovers import left_over
from mmserve.chaos.processes import ServerProcesses

LOAD = 0.8
MAX_GROWTH, MAX_SLOWER = 0.03, 0.10
POOL_PICTURES = 24
MAX_COMPLAINTS = 60
_COMPLAINT = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b|Error\b")
CALIBRATION_CLIENTS = 12
Kind = Literal["good", "aborted", "malformed"]
MALFORMED: tuple[dict[str, Any], ...] = (
    {"messages": "hello"},
    {
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]}
        ]
    },
    {"messages": [{"role": "user", "content": "hi"}], "temperature": -1},
    {"messages": [{"role": "user", "content": "hi"}], "max_tokens": "many"},
    {"messages": []},
)


@dataclass(frozen=True)
class Done:
    """One request that has ended. ``ended_s``: seconds since the start of the soak."""

    kind: Kind
    ended_s: float
    latency_s: float
    error: str


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    complaints = deque[str](maxlen=MAX_COMPLAINTS)
    flags = ["--kv-cache-gb", "0.5", "--mm-cache-gb", "0.25", *arguments.serve_args.split()]
    with serve(*flags, on_line=lambda line: complaints.append(line) if _COMPLAINT.search(line) else None) as target:
        failed = asyncio.run(_soak(target.url, target.model, arguments.minutes * 60, arguments.seed))
    if failed:
        print("what the server complained of last:", *complaints, sep="\n")
    return failed


async def _soak(url: str, model: str, seconds: float, seed: int) -> int:
    processes = ServerProcesses.of_url(url)
    timeout, connector = aiohttp.ClientTimeout(total=300), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(base_url=url, timeout=timeout, connector=connector) as session:

        async def metrics() -> str:
            async with session.get("/metrics") as response:
                return await response.text()

        requests = _requests(model, seed)
        rate = await _capacity(session, requests)
        print(f"capacity {rate:.1f} requests/s; soak at {LOAD * rate:.1f} for {seconds / 60:g} min", flush=True)
        done, memory = await _traffic(session, requests, LOAD * rate, seconds, seed, processes.pss_nbytes)
        left = await left_over(metrics)
    return _judge(done, memory, left, seconds)


def _requests(model: str, seed: int) -> Iterator[tuple[Kind, dict[str, Any]]]:
    """Requests without end, each with its kind."""
    rng = random.Random(seed)
    pool = [_picture(rng) for _ in range(POOL_PICTURES)]
    while True:
        draw = rng.random()
        if draw < 0.05:
            yield "malformed", {"model": model, **rng.choice(MALFORMED)}
            continue
        pictures = rng.choice((0, 0, 1, 1, 1, 2))
        parts = [rng.choice(pool) if rng.random() < 0.6 else _picture(rng) for _ in range(pictures)]
        parts.append({"type": "text", "text": words(rng, rng.choice((4, 20, 150)))})
        body = {
            "model": model,
            "messages": [{"role": "user", "content": parts}],
            "max_tokens": rng.choice((4, 16, 48)),
            "ignore_eos": True,
            "stream": rng.random() < 0.5,
            "temperature": 0,
        }
        yield ("aborted" if draw < 0.25 else "good"), body


def _picture(rng: random.Random) -> dict[str, Any]:
    data = jpeg(rng, (rng.randrange(160, 800, 40), rng.randrange(160, 800, 40)))
    return {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{pybase64.b64encode_as_string(data)}"}}


async def _capacity(session: aiohttp.ClientSession, requests: Iterator[tuple[Kind, dict[str, Any]]]) -> float:
    """Requests a second with CALIBRATION_CLIENTS at once; the first seconds warm the server up."""
    for seconds in (10.0, 30.0):
        started_s = time.monotonic()

        async def client(until_s: float) -> int:
            count = 0
            while time.monotonic() < until_s:
                await _send(session, *next(requests))
                count += 1
            return count

        counts = await asyncio.gather(*(client(started_s + seconds) for _ in range(CALIBRATION_CLIENTS)))
        rate = sum(counts) / (time.monotonic() - started_s)
    return rate


async def _traffic(
    session: aiohttp.ClientSession,
    requests: Iterator[tuple[Kind, dict[str, Any]]],
    rate: float,
    seconds: float,
    seed: int,
    pss_nbytes: Callable[[], int],
) -> tuple[list[Done], list[tuple[float, int]]]:
    """Requests at random times, ``rate`` a second on average. Returns them and samples of (seconds, PSS)."""
    rng, started_s = random.Random(seed), time.monotonic()
    done: list[Done] = []
    memory: list[tuple[float, int]] = []

    async def one(kind: Kind, body: dict[str, Any]) -> None:
        sent_s = time.monotonic()
        error = await _send(session, kind, body)
        now_s = time.monotonic()
        done.append(Done(kind, now_s - started_s, now_s - sent_s, error))

    async def watch() -> None:
        while True:
            memory.append((time.monotonic() - started_s, await asyncio.to_thread(pss_nbytes)))
            await asyncio.sleep(seconds / 120)

    watching = asyncio.create_task(watch())
    async with asyncio.TaskGroup() as group:
        due_s = started_s
        while due_s < started_s + seconds:
            due_s += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            group.create_task(one(*next(requests)))
    watching.cancel()
    return done, memory


async def _send(session: aiohttp.ClientSession, kind: Kind, body: dict[str, Any]) -> str:
    """Send one request and read its answer, or half of it. Returns what went wrong."""
    try:
        async with session.post("/v1/chat/completions", json=body) as response:
            if kind == "malformed":
                return "" if 400 <= response.status < 500 else f"malformed, but status {response.status}"
            if kind == "aborted":
                await response.content.readany()  # leaving the block closes the connection
                return ""
            text = await response.text()
            if response.status != 200 or '"error"' in text:
                return f"{response.status}: {text[:200]}"
    except (aiohttp.ClientError, TimeoutError) as error:
        return "" if kind == "aborted" else repr(error)
    return ""


def _judge(done: list[Done], memory: list[tuple[float, int]], left: dict[str, float], seconds: float) -> int:
    """Print the figures; the exit code."""
    failed = [one for one in done if one.error]
    first, last = (_p99(done, start * seconds, (start + 0.2) * seconds) for start in (0.0, 0.8))
    early = median(pss for at_s, pss in memory if 0.2 * seconds <= at_s < 0.4 * seconds)
    late = median(pss for at_s, pss in memory if at_s >= 0.8 * seconds)
    kinds = ", ".join(f"{sum(one.kind == kind for one in done)} {kind}" for kind in ("good", "aborted", "malformed"))
    print(f"requests: {kinds}; {len(failed)} wrong", *(f"  {one.kind}: {one.error}" for one in failed[:10]), sep="\n")
    print(f"p99 latency: first fifth {first:.2f} s, last fifth {last:.2f} s, ratio {last / first:.2f}")
    print(
        f"memory of all processes: {early / 2**20:.0f} MiB early, {late / 2**20:.0f} MiB late, {late / early - 1:+.1%}"
    )
    print("left over:", left or "nothing")
    good = not failed and not left and late <= (1 + MAX_GROWTH) * early and last <= (1 + MAX_SLOWER) * first
    print("passed" if good else "FAILED")
    return 0 if good else 1


def _p99(done: list[Done], start_s: float, end_s: float) -> float:
    latencies = [one.latency_s for one in done if one.kind == "good" and start_s <= one.ended_s < end_s]
    return quantiles(latencies, n=100)[98]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve-args", default="", help="more options of the server")
    return parser


if __name__ == "__main__":
    sys.exit(main())
