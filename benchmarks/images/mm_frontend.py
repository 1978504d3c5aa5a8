"""How fast one HTTP worker receives pictures, and how this affects its other clients.

A real worker and a real cache server run in front of a stub that answers at once. 64 clients send requests of four new
pictures each, base64 in the JSON. The same run measures two bounds: one thread that only does the necessary work on the
same bodies, and bare uvicorn.

    python -m benchmarks.images.mm_frontend
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import uvloop

from benchmarks.images.frontend import limit
from benchmarks.images.frontend.bare import bare
from benchmarks.images.frontend.bodies import IMAGES, Body, make
from benchmarks.images.frontend.flood import WARM_UP_S, Flood, FloodResult
from benchmarks.images.frontend.histogram import Buckets, buckets, quantile
from benchmarks.load.probes import ProbeTarget, ProbeTimes, probes
from benchmarks.load.report import Row, machine, percentile, table, write_json
from benchmarks.load.server import Target, serve

CLIENTS = 64
LAG_TARGET_MS = {100_000: 15.0, 2_000_000: 40.0}
SHARE_TARGET = 0.6
ITL_TARGET = 2.0
_LAG = "mmserve:event_loop_lag_seconds"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of the flood of each size, after a warm-up")
    parser.add_argument("--idle-seconds", type=float, default=8.0, help="of the text stream alone, before it")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--serve-args", default="--mm-cache-gb 1.5", help="flags for the server")
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    return parser.parse_args()


def measure(target: Target, bodies: Sequence[Body], image_nbytes: int, options: argparse.Namespace) -> Row:
    """One size of pictures."""
    split_limit = limit.requests_per_s(bodies, limit.parse_split)
    plain_limit = limit.requests_per_s(bodies, limit.parse_whole)
    with bare() as uvicorn:
        bare_result = uvloop.run(_flood(uvicorn, bodies, options.seconds))
    probed = ProbeTarget(target.url, target.model)
    with probes(probed) as idle:
        time.sleep(options.idle_seconds)
    before = buckets(target.url, _LAG)
    with probes(probed) as busy:
        flooded = uvloop.run(_flood(target, bodies, options.seconds))
    lag = before, buckets(target.url, _LAG)
    for error in sorted({*bare_result.errors, *flooded.errors})[:3]:
        print(f"  {error}")
    bounds = {"limit": split_limit, "plain limit": plain_limit, "bare uvicorn": bare_result.requests_per_s}
    return _row(image_nbytes, flooded, bounds) | _latencies(lag, idle, busy)


async def _flood(target: Target, bodies: Sequence[Body], seconds: float) -> FloodResult:
    address = urlsplit(target.url)
    assert address.hostname is not None
    assert address.port is not None
    return await Flood(address.hostname, address.port, bodies).run(seconds, _NUMBERS)


_NUMBERS = itertools.count()
"""Numbers of this process's requests. They make every picture new."""


def _row(image_nbytes: int, flooded: FloodResult, bounds: dict[str, float]) -> Row:
    """``bounds``: name -> requests/s to compare with."""
    mb = IMAGES * image_nbytes / 1e6
    row: Row = {
        "images": f"{IMAGES} x {image_nbytes // 1000} KB",
        "requests/s": flooded.requests_per_s,
        "MB/s": flooded.requests_per_s * mb,
    }
    for name, bound in bounds.items():
        row |= {f"{name} MB/s": bound * mb, f"of {name}": flooded.requests_per_s / bound}
    return row | {"bare of plain limit": bounds["bare uvicorn"] / bounds["plain limit"], "errors": len(flooded.errors)}


def _latencies(lag: tuple[Buckets, Buckets], idle: ProbeTimes, busy: ProbeTimes) -> Row:
    return {
        "lag p50 ms": quantile(*lag, 0.5) * 1e3,
        "lag p99 ms": quantile(*lag, 0.99) * 1e3,
        "health p50 ms": percentile(busy.health_s, 0.5) * 1e3,
        "health p99 ms": percentile(busy.health_s, 0.99) * 1e3,
        "ITL p99 idle ms": percentile(idle.gaps_s, 0.99) * 1e3,
        "ITL p99 ms": percentile(busy.gaps_s, 0.99) * 1e3,
    }


def targets(image_nbytes: int, row: Row) -> list[Row]:
    """The targets beside the measured figures."""
    itl = float(str(row["ITL p99 ms"])) / float(str(row["ITL p99 idle ms"]))
    checks = (
        ("of plain limit", float(str(row["of plain limit"])), SHARE_TARGET, "at least"),
        ("of limit", float(str(row["of limit"])), SHARE_TARGET, "at least"),
        ("lag p99 ms", float(str(row["lag p99 ms"])), LAG_TARGET_MS[image_nbytes], "at most"),
        ("ITL p99 / idle", itl, ITL_TARGET, "at most"),
    )
    return [
        {
            "images": row["images"],
            "figure": figure,
            "got": got,
            "target": f"{bound} {target:g}",
            "met": "yes" if (got >= target) == (bound == "at least") or got == target else "no",
        }
        for figure, got, target, bound in checks
    ]


def main() -> None:
    options = arguments()
    rows: list[Row] = []
    checked: list[Row] = []
    with contextlib.ExitStack() as stack:
        arguments_ = options.serve_args.split()
        target = stack.enter_context(serve(*arguments_, program=("benchmarks.images.frontend.server",)))
        for image_nbytes in LAG_TARGET_MS:
            rows.append(measure(target, make(options.clients, image_nbytes, target.model), image_nbytes, options))
            checked += targets(image_nbytes, rows[-1])
            print(f"{rows[-1]['images']}: done", flush=True)
    seconds = f"{options.seconds:g} s each after {WARM_UP_S:g} s of warm-up"
    print(f"\n{machine()}; {options.clients} clients, {seconds}\n\n{table(rows)}\n\n{table(checked)}")
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
