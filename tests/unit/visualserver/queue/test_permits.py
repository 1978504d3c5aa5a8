"""Calls for decode permits: a permit is released even if the cache server does not answer at first."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from mmserve.cache_server.client import MediaCacheClient
from mmserve.runtime.errors import Shortage
from mmserve.visualserver.queue import permits
from mmserve.visualserver.queue.permits import PermitClient


class _Cache:
    """``num_failing`` releases raise before one is answered."""

    def __init__(self, num_failing: int) -> None:
        self.num_failing = num_failing
        self.tried = threading.Semaphore(0)
        self.released = threading.Event()

    def release_permit(self, name: str) -> None:
        self.tried.release()
        if self.num_failing:
            self.num_failing -= 1
            raise Shortage("no descriptors")
        self.released.set()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permits, "_RELEASE_RETRY_S", 0.001)


def test_a_release_is_repeated_until_it_is_answered() -> None:
    cache = _Cache(num_failing=3)
    client = PermitClient(cast(MediaCacheClient, cache), timeout_s=1.0)
    client.release("r/0")
    assert cache.released.wait(10)
    client.close([])


def test_closing_ends_the_repeating() -> None:
    cache = _Cache(num_failing=1_000_000)
    client = PermitClient(cast(MediaCacheClient, cache), timeout_s=1.0)
    client.release("r/0")
    assert cache.tried.acquire(timeout=10)
    client.close([])
    client._releasing.shutdown(wait=True)
    assert not cache.released.is_set()
