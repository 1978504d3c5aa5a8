"""Releases that were not answered are repeated until they are, and once more."""

from __future__ import annotations

import asyncio

import pytest

from mmserve.httpserver.mm_cache import late_releases
from mmserve.httpserver.mm_cache.late_releases import LateReleases
from mmserve.runtime.errors import Unavailable


class Server:
    """Does not answer the first ``num_silent`` releases."""

    def __init__(self, num_silent: int = 0) -> None:
        self.num_silent = num_silent
        self.released: list[str] = []

    async def release(self, request_id: str) -> None:
        if self.num_silent:
            self.num_silent -= 1
            raise Unavailable("silent", retry_after_s=1.0)
        self.released.append(request_id)


@pytest.fixture(autouse=True)
def _short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(late_releases, "INTERVAL_S", 0.0)


async def _until_done(late: LateReleases) -> None:
    assert late._task is not None
    await late._task
    assert not len(late)


def test_a_release_is_repeated_until_it_is_answered_twice() -> None:
    async def scenario() -> list[str]:
        server = Server(num_silent=3)
        late = LateReleases(server.release)
        late.add("a")
        late.add("b")
        await _until_done(late)
        return server.released

    assert sorted(asyncio.run(scenario())) == ["a", "a", "b", "b"]


def test_a_release_that_was_answered_is_repeated_once() -> None:
    async def scenario() -> list[str]:
        server = Server()
        late = LateReleases(server.release)
        late.add("a", answered=True)
        await _until_done(late)
        late.add("b", answered=True)
        await _until_done(late)
        return server.released

    assert asyncio.run(scenario()) == ["a", "b"]


def test_closing_gives_up() -> None:
    async def scenario() -> None:
        late = LateReleases(Server(num_silent=10**9).release)
        late.add("a")
        await asyncio.sleep(0)
        await late.aclose()
        assert len(late) == 1

    asyncio.run(scenario())
