"""Allocation of a request's images: the RPC alone and the whole of it, v1 and v2, beside the lower bound.

Starts the real cache server and drives the HTTP worker's own media code against it: N photo-like JPEGs of 644x364, of
which none, half or all are in the cache. benchmarks/README.md explains the figures.

    python -m benchmarks.images.mm_alloc
    python -m benchmarks.images.mm_alloc --images 4 --images 128 --repeats 15 --json alloc.json
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import uvloop

from benchmarks.images.media.cache_process import CacheProcess, cache_process
from benchmarks.images.media.limit import limit_of
from benchmarks.images.media.netrefs import list_alloc_ms
from benchmarks.images.media.worker import Sample, Worker
from benchmarks.load import report
from mmserve.cli.bench.plan import jpeg
from mmserve.config.config import Config

SIZE = (644, 364)
COUNTS = [1, 4, 8, 16, 32, 64, 128]
HITS = (0, 50, 100)
PATHS = ("v1", "v2")
WARM_UPS = 2
IMAGE_NBYTES = 80 << 10
"""Upper bound of the arena bytes per cached image (the packaged model: 64 rows of 1 KiB)."""
PUBLISHED = {
    4: (129.8, 5.95),
    8: (129.8, 5.90),
    16: (128.0, 5.96),
    32: (130.6, 10.0),
    64: (141.2, 15.9),
    128: (142.6, 26.4),
}
"""Images -> whole allocation by v1 and by v2, ms. v1's alloc RPC is 42.2 to 44.6 of it."""
PUBLISHED_IN = (
    'LightLLM: "Optimize multimodal resource allocation with concurrency and improved batch RPC", August 2025; '
    "fresh images, two Xeon 8358P with 128 logical cores"
)

Case = tuple[int, int, str]
"""(images, percentage of hits, path)"""


@dataclass
class Samples:
    """All samples: the lower bound by number of images, allocations by case."""

    limit_ms: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    cases: dict[Case, list[Sample]] = field(default_factory=lambda: defaultdict(list))
    full: dict[int, list[Sample]] = field(default_factory=lambda: defaultdict(list))
    """Number of images -> samples of v2 in a full arena: every image is a miss and evicts others."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--images", action="append", type=int, help="images in a request; repeatable; default: the published table's"
    )
    parser.add_argument("--repeats", type=int, default=7, help="runs of each case; medians are printed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    return parser.parse_args()


async def measure(cache: CacheProcess, images: Sequence[bytes], counts: Sequence[int], repeats: int) -> Samples:
    """Every case within each repeat, both paths alternating; the first repeats only warm up."""
    samples, workers = Samples(), [Worker(cache, path) for path in PATHS]
    with limit_of(images) as limit:
        for repeat in range(-WARM_UPS, repeats):
            kept = samples if repeat >= 0 else Samples()
            for count in counts:
                kept.limit_ms[count].append(limit.measure_ms(images[:count]))
                for hits in HITS:
                    for worker in workers if repeat % 2 else reversed(workers):
                        sample = await allocate_with_hits(worker, images[:count], hits, repeat)
                        kept.cases[count, hits, worker.path].append(sample)
    await fill(workers[-1], cache.arena.nbytes, images)
    for repeat in range(repeats):
        for count in counts:
            samples.full[count].append(await workers[-1].allocate(images[:count], f"full-{repeat}-{count}"))
    for worker in workers:
        await worker.aclose()
    return samples


async def allocate_with_hits(worker: Worker, images: Sequence[bytes], hits: int, repeat: int) -> Sample:
    """One request with ``hits`` per cent of its images in the cache. Half of one image is a hit every other repeat."""
    salt = f"{worker.path}-{repeat}-{len(images)}-{hits}"
    if cached := (len(images) * hits + 50 * (repeat % 2)) // 100:
        await worker.allocate(images[:cached], salt)
    return await worker.allocate(images, salt)


async def fill(worker: Worker, arena_nbytes: int, images: Sequence[bytes]) -> None:
    """Allocate more images than fit the arena."""
    for number in range(arena_nbytes // sum(map(len, images)) + 1):
        await worker.allocate(images, f"fill-{number}")


def rows(samples: Samples) -> list[report.Row]:
    """One row a case, medians in milliseconds. alloc_full_rpc_ms: the RPC in a full arena, with evictions."""
    found: list[report.Row] = []
    for (count, hits, path), measured in samples.cases.items():
        row: report.Row = {"n": count, "path": path, "hits": hits}
        row["rpc_ms"] = median(sample.rpc_ms["alloc"] for sample in measured)
        row["total_ms"] = median(sample.total_ms for sample in measured)
        row["limit_ms"] = median(samples.limit_ms[count])
        row["rpc_min_ms"] = round(min(sample.rpc_ms["alloc"] for sample in measured), 4)
        row["total_min_ms"] = round(min(sample.total_ms for sample in measured), 4)
        row["set_data_rpc_ms"] = median(sample.rpc_ms.get("set_items_data", 0.0) for sample in measured)
        row["release_ms"] = median(sample.release_ms for sample in measured)
        row["release_rpc_ms"] = median(sample.rpc_ms["release"] for sample in measured)
        if path == "v2" and hits == 0:
            row["alloc_full_rpc_ms"] = median(sample.rpc_ms["alloc"] for sample in samples.full[count])
        found.append(row)
    return sorted(found, key=lambda row: (row["hits"], row["n"], row["path"]))


def median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 4)


def table(found: Sequence[report.Row]) -> str:
    """v1 and v2 of a case in one line, with the published figures beside fresh images."""
    by_case = {(row["hits"], row["n"], row["path"]): row for row in found}
    lines: list[report.Row] = []
    for hits, count in sorted({(row["hits"], row["n"]) for row in found}):
        v1, v2 = by_case[hits, count, "v1"], by_case[hits, count, "v2"]
        published = PUBLISHED.get(count, ("", "")) if hits == 0 else ("", "")
        lines.append(
            {
                "hits %": hits,
                "images": count,
                "RPC v1": v1["rpc_ms"],
                "RPC v2": v2["rpc_ms"],
                "v2, arena full": v2.get("alloc_full_rpc_ms", ""),
                "whole v1": v1["total_ms"],
                "whole v2": v2["total_ms"],
                "limit": v2["limit_ms"],
                "v2 / limit": v2["total_ms"] / v2["limit_ms"],
                "v1 / v2": v1["total_ms"] / v2["total_ms"],
                "LightLLM v1": published[0],
                "LightLLM v2": published[1],
            }
        )
    return report.table(lines)


def tcp_table(counts: list[int], repeats: int) -> str:
    """The alloc RPC with list arguments over TCP, which explains the published figures of v1."""
    plain, prompt = (list_alloc_ms(counts, repeats, nodelay=nodelay) for nodelay in (False, True))
    return report.table(
        [
            {"images": count, "lists over TCP": median(plain[count]), "with TCP_NODELAY": median(prompt[count])}
            for count in counts
        ]
    )


def main() -> None:
    options = arguments()
    counts = options.images or COUNTS
    rng = random.Random(options.seed)
    images = [jpeg(rng, SIZE) for _ in range(max(counts))]
    arena_nbytes = (options.repeats + WARM_UPS) * len(PATHS) * len(HITS) * sum(counts) * IMAGE_NBYTES
    with cache_process(Config(mm_cache_gb=arena_nbytes / 2**30)) as cache:
        found = rows(uvloop.run(measure(cache, images, counts, options.repeats)))
    average_kib = statistics.fmean(map(len, images)) / 1024
    print(f"{report.machine()}; JPEGs of {average_kib:.0f} KiB; ms, medians of {options.repeats}\n\n{table(found)}")
    print(f"\n{PUBLISHED_IN}\n\nThe same call with list arguments over TCP:\n\n{tcp_table(counts, options.repeats)}")
    report.write_json(options.json, found)


if __name__ == "__main__":
    main()
