"""``arena`` and ``mm_hits`` of ``benchmarks.images``: traces, caches to compare with, and shares of repeated images."""

from __future__ import annotations

import argparse
from collections import Counter

import pytest

from benchmarks.images import arena, mm_hits
from benchmarks.images.media_table.images import LARGEST_NBYTES, SMALLEST_NBYTES, catalogue, zipf
from benchmarks.images.media_table.policies import ReferenceCache, fifo, lru
from benchmarks.images.media_table.table import TableDriver
from benchmarks.load.server import Target
from benchmarks.load.workload import bodies
from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem


def _item(name: str) -> AllocItem:
    return AllocItem(name.encode(), 1, 10, 56)


def _hits(cache: ReferenceCache | TableDriver, names: str) -> str:
    """The names, with "-" in place of those that were no hit."""
    return "".join(name if cache.request(_item(name)) else "-" for name in names)


def test_lru_and_fifo_evict_in_their_order() -> None:
    nbytes = 2 * extent_nbytes(56)
    assert _hits(lru(nbytes), "aabacab") == "-a-a-a-"
    assert _hits(fifo(nbytes), "aabacab") == "-a-a---"


def test_the_driver_requests_encodes_and_releases_images() -> None:
    table = TableDriver(4 * extent_nbytes(56))
    assert _hits(table, "aabab") == "-a-ab"
    assert table.media.num_leases == 0


def test_a_trace_is_skewed_and_repeatable() -> None:
    images = catalogue(50, seed=1)
    trace = list(zipf(images, 1.1, 2000, seed=2))
    assert trace == list(zipf(images, 1.1, 2000, seed=2))
    assert Counter(trace).most_common(1)[0][0] == images[0]
    assert all(item.embed_nbytes <= LARGEST_NBYTES and item.data_nbytes >= SMALLEST_NBYTES for item in images)


def test_every_part_of_the_benchmark_gives_a_row() -> None:
    assert arena.cost(50, 60, seed=0)["hits"] == 1
    assert arena.refusal(100, 2)["refused"] == 1
    assert arena.fill(1, 2_000, seed=0)["leased % at the first refusal"] > 85  # type: ignore[operator]


@pytest.mark.parametrize("hits", [0, 50, 100])
def test_the_given_percentage_of_requests_has_a_known_image(hits: int) -> None:
    options = argparse.Namespace(clients=2, requests=8, size=16)
    target = Target("t", "http://nowhere", "m")
    known = bodies(mm_hits.workload("known", 2, options), "m", mm_hits.POOL_SEED, {})
    images = [str(body["messages"][0]["content"][0]) for body in known]  # type: ignore[index]
    made = mm_hits.with_hits(target, hits, 0, known, options)
    seen = [str(body["messages"][0]["content"][0]) in images for body in made]  # type: ignore[index]
    assert sum(seen) * 100 == hits * len(made)
    assert len({str(body["messages"][0]["content"][1]) for body in made}) == len(made), "prompts differ"  # type: ignore[index]
