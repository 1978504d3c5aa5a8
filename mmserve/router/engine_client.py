"""The ranks as one engine: a plan goes to all of them, the result comes from rank 0. Knows no sequences."""

from __future__ import annotations

import logging
from collections import deque

from mmserve.health.heartbeat import INTERVAL_S, HeartbeatSender
from mmserve.ipc.channel import Receiver, Sender
from mmserve.ipc.endpoints import Endpoints
from mmserve.messages.step import RankInbound, RankOutbound, RankReady, StepPlan, StepResult

logger = logging.getLogger(__name__)


class EngineClient:
    """Links to ``num_ranks`` model backends, and the plans in flight: sent, but their result not taken. While they
    compute, the heartbeat goes on without progress."""

    def __init__(self, endpoints: Endpoints, num_ranks: int, pulse: HeartbeatSender) -> None:
        self._results: Receiver[RankOutbound] = Receiver(endpoints.rank_results, RankOutbound)
        self._ranks: list[Sender[RankInbound]] = [
            Sender(endpoints.rank(rank), RankInbound) for rank in range(num_ranks)
        ]
        self._arrived: deque[RankOutbound] = deque()
        self._in_flight: deque[StepPlan] = deque()
        self._pulse = pulse

    def wait_ready(self) -> RankReady:
        """The first message of rank 0, sent when all ranks have loaded."""
        while True:
            message = self._next(busy=False)
            if isinstance(message, RankReady):
                return message
            logger.warning("ignored the result of step %d: it comes before the ranks are ready", message.step_id)

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def send(self, plan: StepPlan) -> None:
        """Have the plan computed after those in flight."""
        for rank in self._ranks:
            rank.send(plan)
        self._in_flight.append(plan)

    def take(self) -> tuple[StepPlan, StepResult]:
        """The oldest plan in flight (there is one) with its result. A plan without steps is not answered, its result is
        empty at once."""
        plan = self._in_flight.popleft()
        if not plan.steps:
            return plan, StepResult(step_id=plan.step_id, tokens=())
        while True:
            message = self._next(busy=True)
            if isinstance(message, StepResult) and message.step_id == plan.step_id:
                return plan, message
            logger.warning("ignored %r while waiting for step %d", message, plan.step_id)

    def close(self) -> None:
        self._results.close()
        for rank in self._ranks:
            rank.close()

    def _next(self, *, busy: bool) -> RankOutbound:
        while not self._arrived:
            self._arrived.extend(self._results.drain(block=True, timeout_s=INTERVAL_S))
            self._pulse.beat(busy=busy, progressed=False)
        return self._arrived.popleft()
