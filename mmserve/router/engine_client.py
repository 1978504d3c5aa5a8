"""Client of the model ranks: sends each plan to all ranks and receives its result from rank 0."""

from __future__ import annotations

import logging
from collections import deque

from mmserve.health.heartbeat import INTERVAL_S, HeartbeatSender
from mmserve.ipc.channel import Receiver, Sender
from mmserve.ipc.endpoints import Endpoints
from mmserve.messages.step import RankInbound, RankOutbound, RankReady, StepPlan, StepResult

logger = logging.getLogger(__name__)


class EngineClient:
    """Channels to ``num_ranks`` ranks, and the plans in flight: sent, but their result not yet received.

    While a call waits for the ranks it sends heartbeats without progress.
    """

    def __init__(self, endpoints: Endpoints, num_ranks: int, heartbeat: HeartbeatSender) -> None:
        self._results: Receiver[RankOutbound] = Receiver(endpoints.rank_results, RankOutbound)
        self._ranks: list[Sender[RankInbound]] = [
            Sender(endpoints.rank(rank), RankInbound) for rank in range(num_ranks)
        ]
        self._received: deque[RankOutbound] = deque()
        self._in_flight: deque[StepPlan] = deque()
        self._heartbeat = heartbeat

    def wait_ready(self) -> RankReady:
        """Waits for rank 0's first message, sent when all ranks have loaded."""
        while True:
            message = self._next(busy=False)
            if isinstance(message, RankReady):
                return message
            logger.warning("ignored the result of step %d: it comes before the ranks are ready", message.step_id)

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def send(self, plan: StepPlan) -> None:
        """Sends a plan; the ranks compute it after those in flight."""
        for rank in self._ranks:
            rank.send(plan)
        self._in_flight.append(plan)

    def receive(self) -> tuple[StepPlan, StepResult]:
        """Waits for the result of the oldest plan in flight (at least one exists).

        The ranks do not answer a plan without steps; its result is empty and returned at once.
        """
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
        while not self._received:
            self._received.extend(self._results.drain(block=True, timeout_s=INTERVAL_S))
            self._heartbeat.beat(busy=busy, progressed=False)
        return self._received.popleft()
