"""What benchmarks.arena and benchmarks.mm_hits measure with: traces, rival caches, and shares of known images."""

from __future__ import annotations

import argparse
from collections import Counter

import pytest

from benchmarks import arena, mm_hits
from benchmarks.load.server import Target
from benchmarks.load.workload import bodies
from benchmarks.slots.images import LARGEST_NBYTES, SMALLEST_NBYTES, catalogue, zipf
from benchmarks.slots.rivals import Rival, fifo, lru
from benchmarks.slots.table import Lives
from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem


def _item(name: str) -> AllocItem:
    return AllocItem(name.encode(), 1, 10, 56)


def _asked(cache: Rival | Lives, names: str) -> str:
    return "".join(name if cache.ask(_item(name)) else "-" for name in names)


def test_rivals_evict_in_their_order() -> None:
    room = 2 * extent_nbytes(56)
    assert _asked(lru(room), "aabacab") == "-a-a-a-"
    assert _asked(fifo(room), "aabacab") == "-a-a---"


def test_the_table_is_driven_as_the_servers_do() -> None:
    table = Lives(4 * extent_nbytes(56))
    assert _asked(table, "aabab") == "-a-ab"
    assert table.media.num_leases == 0


def test_a_trace_is_skewed_and_repeatable() -> None:
    images = catalogue(50, seed=1)
    trace = list(zipf(images, 1.1, 2000, seed=2))
    assert trace == list(zipf(images, 1.1, 2000, seed=2))
    assert Counter(trace).most_common(1)[0][0] == images[0]
    assert all(item.embed_nbytes <= LARGEST_NBYTES and item.data_nbytes >= SMALLEST_NBYTES for item in images)


def test_every_part_gives_a_row() -> None:
    assert arena.cost(50, 60, seed=0)["hits"] == 1
    assert arena.refusal(100, 2)["refused"] == 1
    assert arena.fill(1, 2_000, seed=0)["leased % at the first refusal"] > 85  # type: ignore[operator]


@pytest.mark.parametrize("hits", [0, 50, 100])
def test_so_many_per_cent_have_a_known_image(hits: int) -> None:
    options = argparse.Namespace(clients=2, requests=8, size=16)
    target = Target("t", "http://nowhere", "m")
    known = bodies(mm_hits.workload("known", 2, options), "m", mm_hits.POOL_SEED, {})
    images = [str(body["messages"][0]["content"][0]) for body in known]  # type: ignore[index]
    made = mm_hits.with_hits(target, hits, 0, known, options)
    seen = [str(body["messages"][0]["content"][0]) in images for body in made]  # type: ignore[index]
    assert sum(seen) * 100 == hits * len(made)
    assert len({str(body["messages"][0]["content"][1]) for body in made}) == len(made), "prompts differ"  # type: ignore[index]
