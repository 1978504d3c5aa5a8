"""Requests whose images are large enough for several threads: written and compared by all of them at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from mmserve.httpserver.call import MediaItem
from mmserve.httpserver.mm_cache import leases as leases_module
from mmserve.ipc.arena import Arena
from mmserve.messages.media import Handle
from mmserve.runtime.worker_threads import MIN_BATCH_NBYTES
from tests.fakes.alloc_paths import BothAllocPaths
from tests.fakes.chat_models import deployment_of, write_chat_model

THREADS = 4
ITEMS = [
    MediaItem(np.random.default_rng(number).bytes(MIN_BATCH_NBYTES + number), 40, 30, bytes([number]) * 16, "part")
    for number in range(THREADS)
]


class AtOnce:
    """In place of a function over one item's bytes: begins when as many threads as there are items are in it, and ends
    for ``last`` when it has ended for all others."""

    def __init__(self, function: Any, last: int) -> None:
        self._function = function
        self._last = ITEMS[last].data
        self._together = threading.Barrier(THREADS)
        self._others_ended = threading.Semaphore(0)
        self.threads: set[int] = set()

    def __call__(self, arena: Arena, place: Handle, content: bytes) -> Any:
        self._together.wait(20)
        result = self._function(arena, place, content)
        if content is self._last:
            for _ in range(THREADS - 1):
                assert self._others_ended.acquire(timeout=20)
            time.sleep(0.05)  # enough for one of the others to speak too soon, if it would
        self.threads.add(threading.get_ident())
        self._others_ended.release()
        return result


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    arena = Arena.create((THREADS + 1) * MIN_BATCH_NBYTES)
    yield arena
    arena.close()


@pytest.fixture
def paths(tmp_path: Any, arena: Arena) -> BothAllocPaths:
    model = write_chat_model(tmp_path)
    return BothAllocPaths(deployment_of(model, concurrent_alloc_workers=THREADS, data_budget_mb=64), arena)


@pytest.mark.parametrize("last", [0, THREADS - 1])
def test_all_threads_write_and_the_last_one_says_so(
    paths: BothAllocPaths, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    write, differs = AtOnce(leases_module.write, last), AtOnce(leases_module.differs, last)
    monkeypatch.setattr(leases_module, "write", write)
    monkeypatch.setattr(leases_module, "differs", differs)
    leases, link, written_when_told = paths.paths["v2"].leases, paths.links["v2"], []

    def at_call(name: str) -> None:
        if name == "set_items_data":
            written_when_told.append(len(write.threads))

    link.at_call = at_call

    async def scenario() -> None:
        async with leases.hold("writer", ITEMS) as written:
            assert paths.bytes_held(written) == [item.data for item in ITEMS]
            async with leases.hold("reader", ITEMS) as found:
                assert [one.record for one in found] == [one.record for one in written]

    paths.run(scenario)
    assert len(write.threads) == len(differs.threads) == THREADS
    assert written_when_told == [THREADS]
    assert paths.samples.total("mm_hash_collisions", "v2") == 0
