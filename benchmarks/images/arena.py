"""The arena's table alone: what an operation costs, how much of the arena can be used, and what eviction is worth.

A million operations of the cache server's own table, without sockets and without memory behind it:

- cost: calls for a new image and for a cached one, by the number of images in the arena; and refusing a file for which
  there is no room between images that are leased;
- fill: extents of 20 KB to 60 MB that come and go while 90 % of the arena is leased, which nothing can evict: how much
  of the rest is in use as cache, how often something finds no place in one piece; and how full it gets from empty;
- hits: a Zipf trace of images through an arena that holds a tenth of them, beside LRU and FIFO of the same size;
- pages: bytes that fixed pages would leave unused, and what taking them would cost, beside contiguous extents.

    python -m benchmarks.images.arena
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence

from benchmarks.images.media_table.images import SMALLEST_NBYTES, catalogue, image, zipf
from benchmarks.images.media_table.pages import MIXES, PAGE_NBYTES, pages
from benchmarks.images.media_table.policies import fifo, lru
from benchmarks.images.media_table.table import TableDriver
from benchmarks.load import report
from mmserve.cache_server.entries import Lease
from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem

GIB = 1 << 30
LIVE = (100, 1_000, 10_000, 100_000)
ARENAS_GIB = (4, 16, 64)
ALPHAS = (0.7, 0.9, 1.1)
FILL = 0.9
CATALOGUE = 20_000
CACHED_SHARE = 0.1
NEIGHBOURS, ROWS_NBYTES, REFUSALS = 10, 1 << 16, 200
CALLS_OF_A_MISS, CALLS_OF_A_HIT = 5, 2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=1_000_000, help="calls to the table in all, about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    return parser.parse_args()


def cost(num_live: int, lives: int, seed: int) -> report.Row:
    """Microseconds per request with ``num_live`` images in a full arena, where each new image evicts others."""
    images = catalogue(num_live, seed)
    table = TableDriver(sum(extent_nbytes(item.embed_nbytes) for item in images))
    rng = random.Random(seed + 1)
    new = [image(num_live + number, rng) for number in range(lives)]
    for item in images:
        table.request(item)
    started_s = time.perf_counter()
    for item in new:
        table.request(item)
    missed_s = time.perf_counter() - started_s
    cached = [item for item in new if item in table.media._store.by_spec][-1_000:]
    repeated = random.Random(seed).choices(cached, k=lives)
    started_s = time.perf_counter()
    hits = sum(table.request(item) for item in repeated)
    hit_s = time.perf_counter() - started_s
    return {
        "images in the arena": len(table.media._store.by_id),
        "new image us": missed_s / lives * 1e6,
        "of it evictions": table.media.counters["mm_cache_evictions", "embed"] / (lives + num_live),
        "cached image us": hit_s / lives * 1e6,
        "hits": hits / lives,
        "allocations/s": lives / missed_s,
    }


def refusal(num_live: int, tries: int) -> report.Row:
    """Microseconds to refuse a file twice as large as any gap between two leased images of a full arena."""
    table = TableDriver(num_live * extent_nbytes(ROWS_NBYTES))
    for number in range(num_live):
        lease, _ = table.start(AllocItem(number.to_bytes(16, "big"), 1, SMALLEST_NBYTES, ROWS_NBYTES))
        if number % NEIGHBOURS:
            table.end(lease)
    large = AllocItem(b"large", 1, 2 * NEIGHBOURS * ROWS_NBYTES, ROWS_NBYTES)
    started_s = time.perf_counter()
    refused = [table.start(large)[1] for _ in range(tries)].count("full")
    return {
        "images in the arena": len(table.media._store.by_id),
        "of them leased": table.media.num_leases,
        "refused": refused / tries,
        "refusal us": (time.perf_counter() - started_s) / tries * 1e6,
    }


class _Leased:
    """A table whose leased images are added, and released at random."""

    def __init__(self, nbytes: int, seed: int) -> None:
        self.table = TableDriver(nbytes)
        self.leased_nbytes = 0
        self.calls = 0
        self._rng = random.Random(seed)
        self._leases: list[tuple[Lease, int]] = []

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, *, leave_nbytes: int = 0) -> bool:
        """Lease one more image, after releasing others until ``leave_nbytes`` stay unleased. False if it is refused."""
        item = image(self.calls, self._rng)
        nbytes = extent_nbytes(item.embed_nbytes)
        while leave_nbytes and self.leased_nbytes + nbytes > self.table.nbytes - leave_nbytes:
            self._release_one()
        lease, state = self.table.start(item)
        self.calls += CALLS_OF_A_MISS
        if state == "full":
            return False
        self.leased_nbytes += nbytes
        self._leases.append((lease, nbytes))
        return True

    def _release_one(self) -> None:
        """Release a random lease. Its image stays cached."""
        index = self._rng.randrange(len(self._leases))
        self._leases[index], self._leases[-1] = self._leases[-1], self._leases[index]
        lease, nbytes = self._leases.pop()
        self.table.end(lease)
        self.leased_nbytes -= nbytes


def fill(arena_gib: int, calls: int, seed: int) -> report.Row:
    """Fill an empty arena until an image is refused; then add and release images with FILL of the arena leased."""
    nbytes = arena_gib * GIB
    leased, adds, refused, occupied = _Leased(nbytes, seed), 0, 0, list[float]()
    while leased.add():
        pass
    full = leased.leased_nbytes / nbytes
    started_s, calls = time.perf_counter(), calls + leased.calls
    calls_before = leased.calls
    while leased.calls < calls:
        adds += 1
        refused += not leased.add(leave_nbytes=int((1 - FILL) * nbytes))
        occupied.append(1 - leased.table.media._store.space.holes.free_nbytes / nbytes)
    return {
        "arena GiB": arena_gib,
        "images leased": len(leased),
        "leased % at the first refusal": 100 * full,
        "refused % at 90 % leased": 100 * refused / adds,
        "leased or cached % then": 100 * statistics.fmean(occupied),
        "calls/s": (leased.calls - calls_before) / (time.perf_counter() - started_s),
    }


def hits(alpha: float, requests: int, seed: int) -> report.Row:
    """Hit rates by requests and by image tokens, in the second half of the trace, when the arena is full."""
    images = catalogue(CATALOGUE, seed)
    random.Random(seed).shuffle(images)
    nbytes = int(CACHED_SHARE * sum(extent_nbytes(item.embed_nbytes) for item in images))
    caches = {"mmserve": TableDriver(nbytes), "LRU": lru(nbytes), "FIFO": fifo(nbytes)}
    trace = list(zipf(images, alpha, requests, seed))
    row: report.Row = {"alpha": alpha}
    tokens = {}
    for name, cache in caches.items():
        found = [cache.request(item) for item in trace][requests // 2 :]
        counted = trace[requests // 2 :]
        row[f"{name} hits %"] = 100 * sum(found) / len(found)
        saved = sum(item.num_tokens for item, hit in zip(counted, found, strict=True) if hit)
        tokens[name] = 100 * saved / sum(item.num_tokens for item in counted)
    return row | {f"{name} tokens %": share for name, share in tokens.items()}


def show(title: str, rows: Sequence[report.Row]) -> None:
    print(f"\n{title}\n\n{report.table(rows)}", flush=True)


def main() -> None:
    options = arguments()
    cost_calls, fill_calls, hit_calls = (int(share * options.operations) for share in (0.25, 0.1, 0.65))
    seed = options.seed
    print(report.machine())
    costs = [cost(live, cost_calls // len(LIVE) // (CALLS_OF_A_MISS + CALLS_OF_A_HIT), seed) for live in LIVE]
    show("What a call costs", costs)
    refusals = [refusal(live, REFUSALS) for live in LIVE]
    show("What it costs to find no room between leased images", refusals)
    fills = [fill(gib, fill_calls // len(ARENAS_GIB), seed) for gib in ARENAS_GIB]
    show("How much can be used", fills)
    found = [hits(alpha, hit_calls // len(ALPHAS) // CALLS_OF_A_HIT, seed) for alpha in ALPHAS]
    show(f"Hits on a Zipf trace over {CATALOGUE} images, of which a tenth of the bytes fits", found)
    paged = [pages(mix, seed) for mix in MIXES]
    show(f"Extents beside pages of {PAGE_NBYTES >> 10} KiB", paged)
    report.write_json(options.json, [*costs, *refusals, *fills, *found, *paged])


if __name__ == "__main__":
    main()
