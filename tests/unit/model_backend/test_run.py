"""The loop of a rank, with fakes for its links and its model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from mmserve.ipc.channel import BrokenLink
from mmserve.messages.step import SequenceStep, StepPlan, StepResult
from mmserve.model_backend import run

STEP = (SequenceStep(0, 0, 4, (1,), True),)


class Inbox:
    """Hands out the given batches of plans, then ends the loop."""

    def __init__(self, *batches: list[StepPlan]) -> None:
        self._batches: Iterator[list[StepPlan]] = iter(batches)

    def drain(self, *, block: bool, timeout_s: float) -> list[StepPlan]:
        return next(self._batches)


class Fakes:
    """Outbox, runner and heartbeat in one."""

    def __init__(self) -> None:
        self.computed: list[int] = []
        self.sent: list[int] = []

    def launch(self, plan: StepPlan) -> StepPlan:
        self.computed.append(plan.step_id)
        return plan

    def collect(self, plan: StepPlan) -> StepResult:
        return StepResult(step_id=plan.step_id, tokens=())

    def send(self, result: StepResult) -> None:
        self.sent.append(result.step_id)

    def prepare(self) -> None:
        assert self.sent, "prepared only once a result is on its way"

    def beat(self, **_: object) -> None:
        pass


def serve(*batches: list[StepPlan]) -> Fakes:
    fakes: Any = Fakes()
    inbox: Any = Inbox(*batches)
    with pytest.raises(StopIteration):
        run.serve(inbox, fakes, fakes, fakes, nullcontext, answers=True)
    return fakes


def plan(step_id: int, **changes: Any) -> StepPlan:
    return StepPlan(step_id=step_id, **({"steps": STEP} | changes))


def test_plans_with_steps_are_answered_in_order() -> None:
    fakes = serve([plan(1), plan(2, steps=(), free=(3,))], [], [plan(3)])
    assert fakes.computed == [1, 2, 3]
    assert fakes.sent == [1, 3]


@pytest.mark.parametrize("step_ids", [[2], [1, 3], [1, 1], [1, 2, 1], [0]])
def test_a_plan_that_is_not_the_next_one_is_an_error(step_ids: list[int]) -> None:
    """A rank that went on would leave the router waiting for a result that never comes."""
    with pytest.raises(BrokenLink, match="step"):
        serve([plan(step_id) for step_id in step_ids])
