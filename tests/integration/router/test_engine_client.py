"""Router and ranks run in lockstep: a message that is not the one to come ends the process that receives it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mmserve.ipc.links.endpoints import Endpoints
from mmserve.ipc.links.lockstep import BrokenLink, LockstepReceiver, LockstepSender
from mmserve.messages.step import (
    RankInbound,
    RankOutbound,
    RankReady,
    SequenceStep,
    SlotFailure,
    StepPlan,
    StepResult,
)
from mmserve.monitoring.health.heartbeat import HeartbeatSender
from mmserve.router.engine_client import EngineClient

READY = RankReady(num_blocks=3, block_tokens=16)
PLAN = StepPlan(step_id=1, steps=(SequenceStep(0, 0, 4, (1,), True),))


@pytest.fixture
def endpoints(tmp_path: Path) -> Endpoints:
    return Endpoints(tmp_path)


@pytest.fixture
def client(endpoints: Endpoints) -> Iterator[EngineClient]:
    with (
        closing(LockstepReceiver[StepPlan](endpoints.rank(0), RankInbound)),
        closing(HeartbeatSender(endpoints, "router-0")) as heartbeat,
        closing(EngineClient(endpoints, 1, heartbeat)) as made,
    ):
        yield made


@pytest.fixture
def rank(endpoints: Endpoints) -> Iterator[LockstepSender[Any]]:
    with closing(LockstepSender[Any](endpoints.rank_results, RankOutbound)) as sender:
        yield sender


def test_results_are_those_of_the_plans_in_order(client: EngineClient, rank: LockstepSender[Any]) -> None:
    rank.send(READY)
    assert client.wait_ready() == READY
    client.send(PLAN)
    client.send(StepPlan(step_id=2, free=(0,)))
    client.send(msgspec.structs.replace(PLAN, step_id=3))
    results = [StepResult(step_id=step_id, tokens=((0, (7,)),)) for step_id in (1, 3)]
    for result in results:
        rank.send(result)
    received = [client.receive() for _ in range(3)]
    assert [result for _, result in received] == [results[0], StepResult(step_id=2, tokens=()), results[1]]


@pytest.mark.parametrize(
    "wrong",
    [
        {"t": "result", "step_id": "one"},
        {"t": "nonsense"},
        StepResult(step_id=2, tokens=((0, (7,)),)),
        StepResult(step_id=0, tokens=((0, (7,)),)),
        StepResult(step_id=1, tokens=((0, ()),)),
        StepResult(step_id=1, tokens=((5, (7,)),)),
        StepResult(step_id=1, tokens=(), failures=(SlotFailure(slot=5, media_lost=False, message="x"),)),
        READY,
    ],
    ids=["does not decode", "no such message", "later", "earlier", "no token", "other slot", "other failure", "ready"],
)
def test_another_message_than_the_result_is_an_error(
    client: EngineClient, rank: LockstepSender[Any], wrong: object
) -> None:
    rank.send(READY)
    client.wait_ready()
    client.send(PLAN)
    rank.send(wrong)
    with pytest.raises(BrokenLink):
        client.receive()


def test_a_result_before_the_ranks_are_ready_is_an_error(client: EngineClient, rank: LockstepSender[Any]) -> None:
    rank.send(StepResult(step_id=1, tokens=()))
    with pytest.raises(BrokenLink):
        client.wait_ready()


def test_a_plan_that_does_not_decode_is_an_error(endpoints: Endpoints) -> None:
    with (
        closing(LockstepReceiver[StepPlan](endpoints.rank(0), RankInbound)) as inbox,
        closing(LockstepSender[Any](endpoints.rank(0), RankInbound)) as router,
    ):
        router.send({"t": "plan", "step_id": None})
        with pytest.raises(BrokenLink):
            inbox.drain(block=True, timeout_s=20)
