"""Bytes of an HTTP worker: first come first served, given back once, whatever ends the waiting."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.httpserver.limits.reservations import Reservation, Reservations
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.runtime.errors import TooLarge, Unavailable
from tests.fakes.processes.leaks import leaks
from tests.fakes.processes.samples import Samples


def _budget(limit: int = 100, timeout_s: float = 60.0, samples: Samples | None = None, short: int = 0) -> Reservations:
    metrics = cast(MetricsClient, samples or Samples())
    return Reservations("body", "--body-budget-mb", limit, metrics, timeout_s, short)


def _run(scenario: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(30):
            await scenario

    asyncio.run(limited())


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_reservations_are_granted_in_order_of_arrival() -> None:
    async def scenario() -> None:
        budget, order = _budget(), list[str]()

        async def one(name: str, nbytes: int) -> Reservation:
            reservation = await budget.reserve(nbytes)
            order.append(name)
            return reservation

        first = await one("first", 80)
        large, small = asyncio.create_task(one("large", 90)), asyncio.create_task(one("small", 10))
        await _settle()
        assert order == ["first"], "the small one would fit, but came later"
        first.release()
        await _settle()
        assert order == ["first", "large", "small"]
        assert budget.used_nbytes == 100
        for task in (large, small):
            (await task).release()
        assert budget.used_nbytes == 0

    _run(scenario())


def test_short_reservations_never_wait_but_are_counted() -> None:
    async def scenario() -> None:
        budget = _budget(short=25)
        first = await budget.reserve(100)
        assert not budget.must_wait(25)
        assert budget.must_wait(26)
        shorts = [await budget.reserve(25) for _ in range(4)]
        long = asyncio.create_task(budget.reserve(26))
        first.release()
        await _settle()
        assert not long.done(), "the short ones alone leave no room"
        shorts[0].release()
        shorts[1].shrink(24)
        await _settle()
        assert budget.used_nbytes == 100
        for reservation in (*shorts, await long):
            reservation.release()
        assert budget.used_nbytes == 0

    _run(scenario())


def test_releasing_is_idempotent_and_shrinking_grants_the_next() -> None:
    async def scenario() -> None:
        budget = _budget()
        with await budget.reserve(100) as body:
            waiting = asyncio.create_task(budget.reserve(60))
            await _settle()
            assert budget.num_waiting == 1
            body.shrink(40)
            body.shrink(70)
            assert body.nbytes == 40
            with await waiting:
                assert budget.used_nbytes == 100
                body.release()
                body.release()
                assert budget.used_nbytes == 60
        assert budget.used_nbytes == 0

    _run(scenario())


def test_more_than_the_whole_budget_is_refused_naming_the_flag() -> None:
    async def scenario() -> None:
        with pytest.raises(TooLarge) as refused:
            await _budget(4 << 20).reserve(6 << 20)
        assert str(refused.value) == (
            "the request needs 6.0 MiB at once, more than the 4 MiB of this worker's share (--body-budget-mb)"
        )

    _run(scenario())


def test_waiting_ends_with_the_timeout() -> None:
    async def scenario() -> None:
        budget = _budget(timeout_s=0.01)
        with await budget.reserve(100):
            with pytest.raises(Unavailable) as caught:
                await budget.reserve(1)
            assert caught.value.retry_after_s
            assert str(caught.value) == "no memory became free for this request within 0.01 s (--body-budget-mb)"
            assert budget.num_waiting == 0
        assert budget.used_nbytes == 0

    _run(scenario())


def test_refusals_say_when_so_many_bytes_will_have_been_given_back() -> None:
    clock = [0.0]

    async def scenario() -> None:
        budget = Reservations(
            "body", "--body-budget-mb", 100, cast(MetricsClient, Samples()), 0.01, now=lambda: clock[0]
        )
        with await budget.reserve(100):
            clock[0] += 20.0
        with await budget.reserve(80), await budget.reserve(10) as held:
            with pytest.raises(Unavailable) as caught:
                await budget.reserve(55)
            assert caught.value.retry_after_s == 10.0  # 45 of 90 bytes, each of which is held for 20 s
            with pytest.raises(Unavailable) as caught:
                held.resize(38)
            assert caught.value.retry_after_s == 4.0  # 18 of 90

    _run(scenario())


def test_a_cancelled_waiter_grants_the_next_one() -> None:
    async def scenario() -> None:
        budget = _budget()
        with await budget.reserve(50):
            blocking, behind = asyncio.create_task(budget.reserve(90)), asyncio.create_task(budget.reserve(50))
            await _settle()
            blocking.cancel()
            await _settle()
            assert behind.done()
            (await behind).release()
        assert budget.used_nbytes == 0

    _run(scenario())


def test_a_waiter_cancelled_when_granted_gives_it_back() -> None:
    async def scenario() -> None:
        budget = _budget()
        first = await budget.reserve(100)
        waiting, behind = asyncio.create_task(budget.reserve(100)), asyncio.create_task(budget.reserve(100))
        await _settle()
        first.release()
        waiting.cancel()
        await _settle()
        assert waiting.cancelled()
        assert behind.done()
        (await behind).release()
        assert budget.used_nbytes == 0

    _run(scenario())


@settings(max_examples=60, deadline=None)
@given(
    wishes=st.lists(st.tuples(st.integers(1, 100), st.integers(0, 6), st.booleans()), min_size=1, max_size=12),
)
def test_after_any_order_of_releases_and_cancellations_nothing_is_reserved(wishes: list[tuple[int, int, bool]]) -> None:
    """(bytes, turns of the loop until it is over, cancelled or not)."""

    async def hold(budget: Reservations, nbytes: int, turns: int) -> None:
        with await budget.reserve(nbytes):
            assert 0 <= budget.used_nbytes <= 100
            for _ in range(turns):
                await asyncio.sleep(0)

    async def one(budget: Reservations, nbytes: int, turns: int, cancelled: bool) -> None:
        task = asyncio.create_task(hold(budget, nbytes, turns))
        if cancelled:
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait([task])

    async def scenario() -> None:
        budget = _budget()
        await asyncio.gather(*(one(budget, *wish) for wish in wishes))
        assert (budget.used_nbytes, budget.num_waiting) == (0, 0)
        (await budget.reserve(100)).release()

    _run(scenario())


def test_a_leaked_reservation_is_counted_and_released() -> None:
    async def scenario() -> None:
        samples = Samples()
        budget = _budget(samples=samples)
        await budget.reserve(70)
        gc.collect()
        assert budget.used_nbytes == 0
        assert samples.total("mm_lease_leaks") == 1

    with leaks() as found:
        _run(scenario())
    assert found == ["70 bytes of body were never given back"]


def test_a_reservation_grows_before_those_that_wait_but_not_beyond_the_budget() -> None:
    async def scenario() -> None:
        budget = _budget()
        first = await budget.reserve(50)
        waiting = asyncio.create_task(budget.reserve(60))
        await _settle()
        first.resize(90)
        assert budget.used_nbytes == 90
        with pytest.raises(Unavailable, match="--body-budget-mb"):
            first.resize(101)
        assert first.nbytes == budget.used_nbytes == 90
        first.resize(40)
        (await waiting).release()
        first.release()
        assert budget.used_nbytes == 0

    _run(scenario())


def test_a_short_reservation_grows_even_without_room() -> None:
    async def scenario() -> None:
        budget = _budget(short=20)
        full, short = await budget.reserve(100), budget.empty()
        short.resize(20)
        with pytest.raises(Unavailable):
            short.resize(21)
        full.release()
        short.release()

    _run(scenario())
