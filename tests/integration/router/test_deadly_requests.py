"""A request that kills the engine is refused after its third time; requests beside it get their whole answers.

Dispatcher and scheduler are the real ones. The engine dies whenever a plan computes a deadly sequence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from mmserve.httpserver.engine.dispatcher import Dispatcher
from mmserve.messages.reply import ServerPhase, TokenReply
from mmserve.messages.request import AbortRequest, GenerateRequest
from mmserve.messages.sampling import SamplingParams
from mmserve.monitoring.metrics.client import MetricsClient
from tests.fakes.processes.samples import Samples
from tests.fakes.ranks.rank import generate_alone
from tests.unit.router.builders import Engine, request

MAX_RESTARTS = 5
"""As in supervisor/watching/restarts."""


class DyingServer:
    """The engine behind a dispatcher. Starts again after each death, with a higher epoch."""

    def __init__(self, deadly: Sequence[str], **engine: Any) -> None:
        self._deadly, self._options = deadly, engine
        self.engine = Engine(**engine)
        self.num_deaths = 0
        self.dispatcher = Dispatcher(0, self, cast(MetricsClient, Samples()))
        self._tell_epoch()

    def send(self, message: GenerateRequest | AbortRequest) -> None:
        self.engine.scheduler.receive(message)

    def run(self) -> None:
        """Until the engine has nothing to do."""
        while True:
            self._deliver(self.engine.scheduler.take_replies())
            plan = self.engine.scheduler.schedule()
            if plan is None:
                return
            self._deliver(self.engine.scheduler.take_starts())
            (step,) = self.engine.scheduler._results.in_flight
            if any(sequence.request.id in self._deadly for sequence in step.sequences):
                self.num_deaths += 1
                assert self.num_deaths <= MAX_RESTARTS, "the supervisor would give up"
                self.engine = Engine(**self._options)
                self._tell_epoch()
            else:
                self.engine.scheduler.apply(plan, self.engine.rank.step(plan))

    def _deliver(self, replies: list[tuple[int, TokenReply]]) -> None:
        for _, reply in replies:
            self.dispatcher.deliver(reply)

    def _tell_epoch(self) -> None:
        self.dispatcher.on_phase(ServerPhase(phase="ready", ready=True, engine_epoch=self.num_deaths))


async def answers(server: DyingServer, requests: Sequence[GenerateRequest]) -> dict[str, tuple[str, list[int]]]:
    """Id -> finish reason and tokens."""
    found = {}
    async with AsyncExitStack() as stack:
        submitted = [await stack.enter_async_context(server.dispatcher.submit(each)) for each in requests]
        server.run()
        for each, replies in zip(requests, submitted, strict=True):
            received = [reply async for reply in replies]
            found[each.id] = (received[-1].finish or "", [token for reply in received for token in reply.token_ids])
    return found


@pytest.mark.parametrize("deadly", [["3"], ["0"], ["7"], ["2", "5"]])
def test_only_deadly_requests_are_refused(deadly: list[str]) -> None:
    server = DyingServer(deadly, max_num_batched_tokens=256)
    requests = [request(str(number), [number, *range(50, 60)], max_tokens=6, seed=number) for number in range(8)]
    found = asyncio.run(asyncio.wait_for(answers(server, requests), 20))
    for number, each in enumerate(requests):
        if each.id in deadly:
            assert found[each.id] == ("error", [])
        else:
            alone = generate_alone([number, *range(50, 60)], SamplingParams(max_tokens=6, seed=number), 1024)[0]
            assert found[each.id] == ("length", alone)
    assert server.num_deaths == 2 + len(deadly)


def test_requests_that_were_lost_once_run_together() -> None:
    """Most deaths are no request's fault, and their streams must go on soon."""
    engine = Engine(max_num_batched_tokens=256)
    for number in range(4):
        engine.scheduler.receive(request(str(number), [number, 50], output=[1], num_deaths=1))
    plan = engine.run_step()
    assert plan is not None
    assert len(plan.steps) == 4
    assert [reply.id for _, reply in engine.scheduler.take_starts()] == ["0", "1", "2", "3"]


def test_a_suspect_runs_with_others_once_it_has_a_token() -> None:
    engine = Engine(max_num_batched_tokens=256)
    for number in range(3):
        engine.scheduler.receive(request(str(number), [number, 50], max_tokens=9, num_deaths=2))
    steps = []
    for _ in range(4):
        plan = engine.run_step()
        assert plan is not None
        steps.append(len(plan.steps))
    assert steps == [1, 2, 3, 3]
    assert [reply.id for _, reply in engine.scheduler.take_starts()] == ["0", "1", "2"]


def test_requests_that_wait_while_the_engine_dies_are_no_suspects() -> None:
    """Otherwise they would start one by one after the next death, each with a step of its own."""

    class FewAtATime(DyingServer):
        def run(self) -> None:
            for _ in range(2):  # deaths in the first step, which has room for two of the prompts
                plan = self.engine.scheduler.schedule()
                assert plan is not None
                self._deliver(self.engine.scheduler.take_starts())
                self.num_deaths += 1
                self.engine = Engine(**self._options)
                self._tell_epoch()

    async def scenario() -> list[int]:
        server = FewAtATime([], max_num_batched_tokens=22)
        async with AsyncExitStack() as stack:
            for number in range(8):
                each = request(str(number), [number, *range(50, 60)], max_tokens=6)
                await stack.enter_async_context(server.dispatcher.submit(each))
            server.run()
            deaths = [sequence.request.num_deaths for sequence in server.dispatcher._live.values()]
            DyingServer.run(server)
            return deaths

    assert asyncio.run(asyncio.wait_for(scenario(), 20)) == [2, 2, 1, 1, 1, 1, 1, 1]
