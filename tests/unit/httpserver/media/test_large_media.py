"""Images that are large enough for several threads are written and compared in parallel."""

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
from tests.fakes.models.chat_models import deployment_of, write_chat_model
from tests.fakes.pictures.alloc_paths import BothAllocPaths

THREADS = 4
ITEMS = [
    MediaItem(np.random.default_rng(number).bytes(MIN_BATCH_NBYTES + number), 40, 30, bytes([number]) * 16, "part")
    for number in range(THREADS)
]


class InParallel:
    """Wraps a function over one item's bytes: all calls start together; that for item ``last`` ends last."""

    def __init__(self, function: Any, last: int) -> None:
        self._function = function
        self._last = ITEMS[last].data
        self._all_started = threading.Barrier(THREADS)
        self._others_done = threading.Semaphore(0)
        self.threads: set[int] = set()

    def __call__(self, arena: Arena, place: Handle, content: bytes) -> Any:
        self._all_started.wait(20)
        result = self._function(arena, place, content)
        if content is self._last:
            for _ in range(THREADS - 1):
                assert self._others_done.acquire(timeout=20)
            time.sleep(0.05)  # time for another thread to report too early, if it did
        self.threads.add(threading.get_ident())
        self._others_done.release()
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
def test_all_threads_write_and_the_last_one_reports(
    paths: BothAllocPaths, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    write, differs = InParallel(leases_module.write, last), InParallel(leases_module.differs, last)
    monkeypatch.setattr(leases_module, "write", write)
    monkeypatch.setattr(leases_module, "differs", differs)
    leases, pool, num_written_at_report = paths.paths["v2"].leases, paths.pools["v2"], []

    def at_call(name: str) -> None:
        if name == "set_items_data":
            num_written_at_report.append(len(write.threads))

    pool.at_call = at_call

    async def scenario() -> None:
        async with leases.hold("writer", ITEMS) as written:
            assert paths.bytes_held(written) == [item.data for item in ITEMS]
            async with leases.hold("reader", ITEMS) as found:
                assert [one.record for one in found] == [one.record for one in written]

    paths.run(scenario)
    assert len(write.threads) == len(differs.threads) == THREADS
    assert num_written_at_report == [THREADS]
    assert paths.samples.total("mm_hash_collisions", "v2") == 0
