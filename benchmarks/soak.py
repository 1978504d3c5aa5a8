"""A soak test: half an hour of mixed traffic at 80 % of what the server can do. Nothing may grow or slow down.

    python -m benchmarks.soak --minutes 30

Measures the capacity with as many clients as answers can use, then sends requests at random times at 80 % of that rate:
text, new and repeated pictures, one and two of them, streamed or not. Of all requests 20 % are aborted by their client
half-way and 5 % are malformed. Exits with 1 if a good request failed, a malformed one was not refused with a 4xx, the
memory of all processes grew by more than 3 % after the first two fifths, the p99 latency of the last fifth is more than
10 % above that of the first, or something was not given back.

The speed of a virtual machine varies: with 12 clients at work all the time, the rates of ten seconds were between 15
and 25 requests/s within two minutes. So the capacity is the lowest rate of ten seconds in two minutes. A load of 80 %
of the mean would be more than the server can do for a while, and the queue of that time would decide the p99 latency. A
probe (a fixed piece of work, by its CPU time) shows the speed of the machine in each fifth. If the machine is slower in
the last fifth, the limit for the latency is higher by the same factor.

Each fifth has the same times and kinds of requests as the first, with new words and pictures: at this load a few
requests that arrive together make others wait, so two random fifths differ by more than the 10 %. Run it alone: other
work on the machine counts as a slower server. The CPU time that others took is printed beside each fifth.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles
from typing import Any, Literal

import aiohttp
import numpy as np
import psutil
import pybase64

from benchmarks.load.server import serve
from mmserve.cli.bench.plan import jpeg, words
from mmserve.cli.chaos.leftovers import left_over
from mmserve.cli.chaos.processes import ServerProcesses

LOAD = 0.8
FIFTHS = 5
MAX_GROWTH, MAX_SLOWER = 0.03, 0.10
POOL_PICTURES = 24
MAX_COMPLAINTS = 60
_COMPLAINT = re.compile(r"\b(WARNING|ERROR|CRITICAL)\b|Error\b")
CALIBRATION_CLIENTS = 12
WARM_UP_S, WINDOW_S, NUM_WINDOWS = 10.0, 10.0, 12
NUM_SAMPLES = 360
PROBE_NBYTES = 64 << 20
"""More than the caches of one core hold: decoding reads weights from memory."""
PROBE_STEPS = 20_000
_PROBE_DATA = np.ones(PROBE_NBYTES // 8)
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
class Sample:
    """``others_cpu_s``: CPU time that neither the server nor this process has used, since the machine's start."""

    at_s: float
    pss_nbytes: dict[str, int]
    """Of each process, by its title."""
    others_cpu_s: float
    probe_s: float
    """CPU time of a fixed piece of work."""


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
    flags = ["--kv-cache-gb", "0.5", "--mm-cache-gb", "0.25", "--prefault", *arguments.serve_args.split()]
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

        rate = await _capacity(session, _requests(model, seed, 0))
        print(f"capacity {rate:.1f} requests/s; soak at {LOAD * rate:.1f} for {seconds / 60:g} min", flush=True)
        fifths = (_requests(model, seed, number) for number in range(1, FIFTHS + 1))
        done, samples = await _traffic(session, fifths, LOAD * rate, seconds, seed, processes)
        left = await left_over(metrics)
    return _judge(done, samples, left, seconds)


def _requests(model: str, seed: int, number: int) -> Iterator[tuple[Kind, dict[str, Any]]]:
    """Requests without end, each with its kind: with another ``number`` the same ones, with other words and pictures.

    Only the pool of pictures that are sent again and again depends on the seed alone.
    """
    rng, fresh = random.Random(seed), random.Random(f"{seed} {number}")
    pool = [_picture(rng, rng) for _ in range(POOL_PICTURES)]
    while True:
        draw = rng.random()
        if draw < 0.05:
            yield "malformed", {"model": model, **rng.choice(MALFORMED)}
            continue
        pictures = rng.choice((0, 0, 1, 1, 1, 2))
        parts = [rng.choice(pool) if rng.random() < 0.6 else _picture(rng, fresh) for _ in range(pictures)]
        parts.append({"type": "text", "text": words(fresh, rng.choice((4, 20, 150)))})
        body = {
            "model": model,
            "messages": [{"role": "user", "content": parts}],
            "max_tokens": rng.choice((4, 16, 48)),
            "ignore_eos": True,
            "stream": rng.random() < 0.5,
            "temperature": 0,
        }
        yield ("aborted" if draw < 0.25 else "good"), body


def _picture(rng: random.Random, fresh: random.Random) -> dict[str, Any]:
    """``rng`` chooses the size, ``fresh`` what is in it."""
    data = jpeg(fresh, (rng.randrange(160, 800, 40), rng.randrange(160, 800, 40)))
    return {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{pybase64.b64encode_as_string(data)}"}}


async def _capacity(session: aiohttp.ClientSession, requests: Iterator[tuple[Kind, dict[str, Any]]]) -> float:
    """Lowest rate of WINDOW_S in requests a second, with CALIBRATION_CLIENTS at once, after a warm-up."""
    started_s = time.monotonic()
    ended_s: list[float] = []

    async def client() -> None:
        while time.monotonic() - started_s < WARM_UP_S + NUM_WINDOWS * WINDOW_S:
            await _send(session, *next(requests))
            ended_s.append(time.monotonic() - started_s)

    await asyncio.gather(*(client() for _ in range(CALIBRATION_CLIENTS)))
    counts = Counter((at_s - WARM_UP_S) // WINDOW_S for at_s in ended_s)
    rates = [counts[number] / WINDOW_S for number in range(NUM_WINDOWS)]
    print(f"requests/s with {CALIBRATION_CLIENTS} clients:", *(f"{rate:.1f}" for rate in rates))
    return min(rates)


async def _traffic(
    session: aiohttp.ClientSession,
    fifths: Iterable[Iterator[tuple[Kind, dict[str, Any]]]],
    rate: float,
    seconds: float,
    seed: int,
    processes: ServerProcesses,
) -> tuple[list[Done], list[Sample]]:
    """Requests at random times, ``rate`` a second on average."""
    started_s = time.monotonic()
    done: list[Done] = []
    samples: list[Sample] = []

    async def one(kind: Kind, body: dict[str, Any]) -> None:
        sent_s = time.monotonic()
        error = await _send(session, kind, body)
        now_s = time.monotonic()
        done.append(Done(kind, now_s - started_s, now_s - sent_s, error))

    async def watch() -> None:
        while True:
            samples.append(await asyncio.to_thread(_sample, processes, time.monotonic() - started_s))
            await asyncio.sleep(seconds / NUM_SAMPLES)

    watching = asyncio.create_task(watch())
    async with asyncio.TaskGroup() as group:
        for number, requests in enumerate(fifths):
            for due_s in _arrivals(seed, rate, seconds / FIFTHS):
                await asyncio.sleep(max(0.0, started_s + number * seconds / FIFTHS + due_s - time.monotonic()))
                group.create_task(one(*next(requests)))
    watching.cancel()
    return done, samples


def _sample(processes: ServerProcesses, at_s: float) -> Sample:
    spent, own = psutil.cpu_times(), psutil.Process().cpu_times()
    busy_s = sum(spent) - spent.idle - spent.iowait
    return Sample(at_s, processes.pss_by_title(), busy_s - processes.cpu_seconds() - own.user - own.system, _probe_s())


def _probe_s() -> float:
    """CPU seconds for reading PROBE_NBYTES of memory and PROBE_STEPS steps of Python."""
    started_s = time.thread_time()
    _PROBE_DATA.sum()
    sum(range(PROBE_STEPS))
    return time.thread_time() - started_s


def _arrivals(seed: int, rate: float, seconds: float) -> Iterator[float]:
    """Ascending random times in ``seconds``: the same ones for the same arguments."""
    rng, due_s = random.Random(seed), 0.0
    while (due_s := due_s + rng.expovariate(rate)) < seconds:
        yield due_s


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


def _judge(done: list[Done], samples: list[Sample], left: dict[str, float], seconds: float) -> int:
    """Print the figures; the exit code."""
    failed = [one for one in done if one.error]
    fifths = [_latencies(done, number * seconds / FIFTHS, (number + 1) * seconds / FIFTHS) for number in range(FIFTHS)]
    first, last = _p99(fifths[0]), _p99(fifths[-1])
    early = _memory([each for each in samples if 0.2 * seconds <= each.at_s < 0.4 * seconds])
    late = _memory([each for each in samples if each.at_s >= 0.8 * seconds])
    growth = sum(late.values()) / sum(early.values()) - 1
    kinds = ", ".join(f"{sum(one.kind == kind for one in done)} {kind}" for kind in ("good", "aborted", "malformed"))
    print(f"requests: {kinds}; {len(failed)} wrong", *(f"  {one.kind}: {one.error}" for one in failed[:10]), sep="\n")
    probes_s = []
    for number, latencies in enumerate(fifths):
        here = [each for each in samples if number <= each.at_s / seconds * FIFTHS < number + 1]
        used_s = (here[-1].others_cpu_s - here[0].others_cpu_s) / seconds * FIFTHS
        probes_s.append(fmean(each.probe_s for each in here))
        beside = f"others used {used_s:.1%} of a core, probe {probes_s[-1] * 1000:.1f} ms"
        print(f"latency in fifth {number + 1}: {median(latencies):.2f} s p50, {_p99(latencies):.2f} s p99; {beside}")
    slower, machine = last / first, max(1.0, probes_s[-1] / probes_s[0])
    print(f"p99 latency, last fifth to first: {slower:.2f}; limit {1 + MAX_SLOWER:.2f} x {machine:.2f} (machine)")
    print(f"memory of all processes: {growth:+.1%}; MiB early and late:")
    print(*(f"  {title}: {early.get(title, 0):.0f}, {late[title]:.0f}" for title in sorted(late)), sep="\n")
    print("left over:", left or "nothing")
    good = not failed and not left and growth <= MAX_GROWTH and slower <= (1 + MAX_SLOWER) * machine
    print("passed" if good else "FAILED")
    return 0 if good else 1


def _memory(samples: list[Sample]) -> dict[str, float]:
    """Median PSS of each process in MiB."""
    titles = {title for each in samples for title in each.pss_nbytes}
    return {title: median(each.pss_nbytes.get(title, 0) for each in samples) / 2**20 for title in titles}


def _latencies(done: list[Done], start_s: float, end_s: float) -> list[float]:
    """Of the good requests that were sent in this time."""
    return [one.latency_s for one in done if one.kind == "good" and start_s <= one.ended_s - one.latency_s < end_s]


def _p99(latencies: list[float]) -> float:
    return quantiles(latencies, n=100)[98]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve-args", default="", help="more options of the server")
    return parser


if __name__ == "__main__":
    sys.exit(main())
