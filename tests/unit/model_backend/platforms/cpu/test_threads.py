"""A rank keeps all of its threads on its part of the machine."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest

from mmserve.model_backend.platforms.cpu.threads import place
from mmserve.runtime.cpu import topology
from mmserve.runtime.cpu.topology import Core, Domain

CPUS = sorted(os.sched_getaffinity(0))

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="one CPU, which all ranks share")


@pytest.fixture(autouse=True)
def unbound_afterwards() -> Iterator[None]:
    yield
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(thread), CPUS)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each CPU were a NUMA node."""
    monkeypatch.setattr(topology, "cores", lambda allowed: [Core(Domain(cpu, cpu), (cpu,)) for cpu in sorted(allowed)])


def test_threads_from_before_and_after_are_bound(nodes: None) -> None:
    may_end = threading.Event()
    before = threading.Thread(target=may_end.wait)
    before.start()
    place(1, 2)
    part = set(CPUS[len(CPUS) // 2 :])
    seen: list[set[int]] = []
    after = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
    after.start()
    after.join()
    assert before.native_id is not None
    assert os.sched_getaffinity(before.native_id) == os.sched_getaffinity(0) == seen[0] == part
    may_end.set()
    before.join()


def test_one_rank_is_not_bound(nodes: None) -> None:
    place(0, 1)
    assert os.sched_getaffinity(0) == set(CPUS)
