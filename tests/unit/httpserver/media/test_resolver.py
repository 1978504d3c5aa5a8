"""Look-ups that hang: further ones fail soon, and IP literals need no look-up."""

from __future__ import annotations

import asyncio
import threading

import pytest

from mmserve.httpserver.limits.media_budgets import RequestByteLimit
from mmserve.httpserver.media.addresses import AddressPolicy
from mmserve.httpserver.media.fetch import Fetcher
from mmserve.httpserver.media.resolver import Resolver
from mmserve.runtime.errors import Unavailable
from tests.fakes.processes.shortages import no_more_threads


class SlowNames:
    """Answers names that end with .slow only after ``answer``."""

    def __init__(self) -> None:
        self.answer = threading.Event()
        self.asked = threading.Semaphore(0)

    def __call__(self, host: str, port: int) -> list[str]:
        if host.endswith(".slow"):
            self.asked.release()
            assert self.answer.wait(30)
        if host == "no.name":
            raise OSError("no such name")
        return ["192.0.2.1"]


def test_names_literals_and_unknown_names() -> None:
    async def test() -> None:
        resolver = Resolver(SlowNames())
        assert await resolver.addresses("a.name", 80) == ["192.0.2.1"]
        assert await resolver.addresses("8.8.8.8", 80) == ["8.8.8.8"]
        assert await resolver.addresses("::1", 80) == ["::1"]
        with pytest.raises(OSError, match="no such name"):
            await resolver.addresses("no.name", 80)
        resolver.close()

    asyncio.run(test())


def test_hanging_look_ups_delay_no_literal_and_only_their_threads() -> None:
    async def test() -> None:
        names = SlowNames()
        resolver = Resolver(names, max_lookups=2, thread_timeout_s=0.05)
        slow = [asyncio.create_task(resolver.addresses(f"{index}.slow", 80)) for index in range(2)]
        await asyncio.sleep(0)
        slow[0].cancel()  # the caller is cancelled; its look-up still occupies a thread
        assert await resolver.addresses("8.8.8.8", 80) == ["8.8.8.8"]
        with pytest.raises(Unavailable):
            await resolver.addresses("a.name", 80)
        names.answer.set()
        assert await slow[1] == ["192.0.2.1"]
        assert await resolver.addresses("a.name", 80) == ["192.0.2.1"]
        resolver.close()

    asyncio.run(test())


def test_a_fetch_without_a_free_look_up_thread_is_unavailable() -> None:
    async def test() -> None:
        names = SlowNames()
        resolver = Resolver(names, max_lookups=1, thread_timeout_s=0.05)
        fetcher = Fetcher(AddressPolicy(), timeout_s=20, resolver=resolver)
        slow = asyncio.create_task(fetcher.get("http://a.slow/", RequestByteLimit(100)))
        assert await asyncio.to_thread(names.asked.acquire, timeout=20)
        with pytest.raises(Unavailable):
            await fetcher.get("http://another.name/", RequestByteLimit(100))
        slow.cancel()
        names.answer.set()
        await asyncio.gather(slow, return_exceptions=True)
        await fetcher.aclose()

    asyncio.run(test())


def test_without_threads_a_look_up_fails_with_503_and_its_permit_is_given_back() -> None:
    async def test() -> None:
        resolver = Resolver(SlowNames(), max_lookups=1, thread_timeout_s=0.05)
        for _ in range(2):
            with no_more_threads(), pytest.raises(Unavailable, match="out of threads"):
                await resolver.addresses("a.name", 80)
        resolver.close()

    asyncio.run(test())
