"""Client of the model ranks: sends each plan to all ranks and receives its result from rank 0."""

from __future__ import annotations

from collections import deque

from mmserve.ipc.links.channel import Receiver, wait_for_any
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.ipc.links.lockstep import BrokenLink, LockstepReceiver, LockstepSender
from mmserve.messages.request import EngineInbound
from mmserve.messages.step import RankInbound, RankOutbound, RankReady, StepPlan, StepResult
from mmserve.monitoring.health.heartbeat import INTERVAL_S, HeartbeatSender

_SHORT_STEP_S = 0.005
"""Messages may wait so long for the end of a step. Waiting for two sockets made steps of 1 ms a tenth longer."""


class EngineClient:
    """Channels to the ranks of this machine, and the plans in flight: sent, but their result not yet received.

    While a call waits for the ranks it sends heartbeats without progress. It raises BrokenLink if the ranks send
    anything but what comes next.
    """

    def __init__(
        self, endpoints: Endpoints, num_ranks: int, heartbeat: HeartbeatSender, *, other_nodes: bool = False
    ) -> None:
        """``num_ranks``: on this machine. ``other_nodes``: others have more, and get plans by the links of nodes."""
        self._results: LockstepReceiver[RankOutbound] = LockstepReceiver(endpoints.rank_results, RankOutbound)
        receivers = [endpoints.rank(rank) for rank in range(num_ranks)]
        if other_nodes:
            receivers.append(endpoints.node_plans)
        self._ranks: list[LockstepSender[RankInbound]] = [LockstepSender(path, RankInbound) for path in receivers]
        self._received: deque[RankOutbound] = deque()
        self._in_flight: deque[StepPlan] = deque()
        self._heartbeat = heartbeat

    def wait_ready(self) -> RankReady:
        """Waits for rank 0's first message, sent when all ranks have loaded."""
        message = self._next(busy=False)
        if not isinstance(message, RankReady):
            raise BrokenLink(f"the ranks sent the result of step {message.step_id} before they were ready")
        return message

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    def send(self, plan: StepPlan) -> None:
        """Sends a plan; the ranks compute it after those in flight."""
        for rank in self._ranks:
            rank.send(plan)
        self._in_flight.append(plan)

    def wait(self, inbox: Receiver[EngineInbound]) -> bool:
        """Waits for the result of the oldest plan in flight (at least one exists), or for a message in ``inbox``. True
        if the result is there.

        Looks at ``inbox`` in steps that are not short only.
        """
        if self._in_flight[0].steps and not self._received:
            self._received.extend(self._results.drain(block=True, timeout_s=_SHORT_STEP_S))
        while self._in_flight[0].steps and not self._received:
            ready = wait_for_any((self._results, inbox), INTERVAL_S)
            self._heartbeat.beat(busy=True, progressed=False)
            if self._results in ready:
                self._received.extend(self._results.drain(block=False))
            elif ready:
                return False
        return True

    def receive(self) -> tuple[StepPlan, StepResult]:
        """Waits for the result of the oldest plan in flight (at least one exists).

        The ranks do not answer a plan without steps; its result is empty and returned at once.
        """
        plan = self._in_flight.popleft()
        if not plan.steps:
            return plan, StepResult(step_id=plan.step_id, tokens=())
        message = self._next(busy=True)
        if not isinstance(message, StepResult) or message.step_id != plan.step_id:
            raise BrokenLink(f"instead of the result of step {plan.step_id} the ranks sent {message!r:.200}")
        sampling = {step.slot for step in plan.steps if step.sample}
        if not sampling.issuperset([*(slot for slot, _ in message.tokens), *message.deferred]):
            raise BrokenLink(f"the result of step {plan.step_id} has tokens of slots that do not sample in it")
        if (named := _slots_besides_tokens(message)) and not named <= {step.slot for step in plan.steps}:
            raise BrokenLink(f"the result of step {plan.step_id} names slots that are not in its plan")
        return plan, message

    def close(self) -> None:
        self._results.close()
        for rank in self._ranks:
            rank.close()

    def _next(self, *, busy: bool) -> RankOutbound:
        while not self._received:
            self._received.extend(self._results.drain(block=True, timeout_s=INTERVAL_S))
            self._heartbeat.beat(busy=busy, progressed=False)
        return self._received.popleft()


def _slots_besides_tokens(result: StepResult) -> set[int]:
    """Slots that have failed, or that bring something of their prompt."""
    if not (result.failures or result.prompt_logprobs or result.embeddings):
        return set()
    of_prompts = [slot for slot, _ in (*result.prompt_logprobs, *result.embeddings)]
    return {*of_prompts, *(failure.slot for failure in result.failures)}
