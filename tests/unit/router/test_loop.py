"""The order in which the router's loop sends plans and replies."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from mmserve.ipc.faults import NO_FAULTS
from mmserve.messages.reply import TokenReply
from mmserve.messages.request import EncodeRequest, EngineInbound
from mmserve.messages.step import StepPlan, StepResult
from mmserve.monitoring.health.heartbeat import INTERVAL_S
from mmserve.router.run import serve
from mmserve.router.scheduler.scheduler import Scheduler, SchedulerConfig
from tests.fakes.processes.samples import Samples
from tests.fakes.ranks.rank import BLOCK_TOKENS, FakeRank
from tests.unit.router.builders import abort, request, span

TOKEN_S = 0.125
"""What the rank reports for a step with one token."""


class _Over(Exception):
    """Nothing arrives any more, and the router would wait."""


class Around:
    """What the loop talks to, in place of all its peers. ``events``: what it has done, in order.

    ``messages``: those that are there at each of its first turns. Its clock goes on while the loop waits for less than
    a heartbeat; a longer wait is the end.
    """

    def __init__(self, messages: Sequence[Sequence[EngineInbound]]) -> None:
        self._messages = deque(messages)
        self.clock_s = 0.0
        self._rank = FakeRank(num_blocks=24, num_slots=4, max_tokens=64, token_s=TOKEN_S)
        self._plans: deque[StepPlan] = deque()
        self.events: list[str] = []
        self.busy = True
        self.receiver: Any = None
        self.is_held = self.has_any = False

    def take(self, *, block: bool, timeout_s: float) -> Sequence[EngineInbound]:
        if self._messages:
            return self._messages.popleft()
        if block and timeout_s >= INTERVAL_S:
            raise _Over
        if block:
            self.clock_s += timeout_s
            self.events.append(f"pause of {timeout_s}")
        return ()

    def drop_dead(self, messages: Iterable[EngineInbound]) -> None:
        pass

    def send_all(self, replies: Iterable[tuple[int, Any]]) -> None:
        for _, reply in replies:
            assert isinstance(reply, TokenReply | EncodeRequest)
            said = reply.finish or "token" if isinstance(reply, TokenReply) else "asks for an image"
            self.events.append(f"{reply.id} {said}")

    @property
    def num_in_flight(self) -> int:
        return len(self._plans)

    def send(self, plan: StepPlan) -> None:
        self._plans.append(plan)
        self.events.append(f"plan of {len(plan.steps)}")

    def receive(self) -> tuple[StepPlan, StepResult]:
        plan = self._plans.popleft()
        self.events.append("result")
        return plan, self._rank.step(plan)

    def beat(self, *, busy: bool) -> None:
        self.busy = busy


def run(messages: Sequence[Sequence[EngineInbound]], depth: int) -> list[str]:
    """What the loop does until it would wait for messages."""
    around: Any = Around(messages)
    encoders: Any = Around([])
    metrics: Any = Samples()
    config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64, max_model_len=128, shares_cores=True)
    scheduler = Scheduler(
        config, num_blocks=24, block_tokens=BLOCK_TOKENS, now=lambda: around.clock_s, record=metrics.add
    )
    with pytest.raises(_Over):
        serve(around, scheduler, around, encoders, around, metrics, around, NO_FAULTS, depth)
    assert not around.busy, "a router that waits says so"
    assert metrics.names().count("step_seconds") == sum(event.startswith("plan of 1") for event in around.events)
    return list(around.events)


def test_the_next_plan_is_sent_before_the_replies_of_the_last_step() -> None:
    assert run([[request("a", [1, 2, 3], max_tokens=3)]], depth=1) == [
        *("plan of 1", "result"),
        *("plan of 1", "a token", "result"),
        *("plan of 1", "a token", "result"),
        *("plan of 0", "a length", "result"),
    ]


@pytest.mark.parametrize("depth", [1, 2])
def test_an_abort_is_answered_after_the_results_of_all_plans_that_compute_its_sequence(depth: int) -> None:
    events = run([[request("a", [1, 2, 3], max_tokens=50)], [], [abort("a")]], depth)
    end = events.index("a abort")
    assert events[:end].count("result") >= events[:end].count("plan of 1") == depth + 1
    assert "plan of 1" not in events[end:]


def test_replies_do_not_wait_while_decoding_pauses_for_an_image() -> None:
    first = request("a", [*range(1000, 1004), 1], spans=(span(0, 4, 1),), max_tokens=3)
    second = request("b", [*range(1100, 1104), 1], spans=(span(0, 4, 2, encoded=False),), max_tokens=3)
    assert run([[first], [], [second]], depth=1) == [
        *("plan of 1", "result"),
        *("plan of 1", "a token", "result"),
        *("a token", f"pause of {2 * TOKEN_S}", "plan of 1", "result"),
        *("plan of 0", "a length", "result"),
    ]


def test_what_needs_no_step_is_answered_at_once() -> None:
    assert run([[abort("nobody")]], depth=1) == ["nobody abort"]
