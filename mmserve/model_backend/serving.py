"""The loop of a rank: computes plans in the order of arrival and sends their results.

On a CPU launching a plan computes it, so its result is collected and sent at once (``PlansAtOnce``). A GPU computes
while the next plan is launched; a thread waits for each result (``PlansAhead``).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from queue import SimpleQueue
from typing import Protocol

from mmserve.ipc.links.lockstep import BrokenLink, LockstepReceiver
from mmserve.messages.step import RankInbound, StepPlan, StepResult
from mmserve.model_backend.worker.embedding_source import SentRows
from mmserve.model_backend.worker.in_flight import InFlight
from mmserve.model_backend.worker.model_runner import ModelRunner
from mmserve.monitoring.health.heartbeat import INTERVAL_S, HeartbeatSender

Send = Callable[[StepResult], object]
Computing = Callable[[], AbstractContextManager[None]]

_ENDS_WITHIN_S = 10.0
"""After the last plan the results of those in flight. A device that answers no more is not waited for."""
_LAST_STEPS = 8

logger = logging.getLogger(__name__)


class Plans(Protocol):
    """Computes plans. Results of those with steps are sent in order."""

    def compute(self, plan: StepPlan) -> None: ...

    def progress(self) -> int:
        """Plans whose results were collected, ever. Raises what has ended the collecting."""
        ...


class PlansAtOnce:
    """See ``Plans``. ``computing``: entered while a plan is computed."""

    def __init__(self, runner: ModelRunner, send: Send, computing: Computing) -> None:
        self._runner, self._send, self._computing = runner, send, computing
        self._num_collected = 0

    def compute(self, plan: StepPlan) -> None:
        with self._computing():
            result = self._runner.collect(self._runner.launch(plan))
        self._num_collected += 1
        if plan.steps:
            self._send(result)
            self._runner.prepare()  # while the router makes the next plan

    def progress(self) -> int:
        return self._num_collected


class PlansAhead:
    """See ``Plans``. ``with``: the thread that collects runs inside the block.

    Only waiting for the device is done by both threads at a time: the runner is used under a lock. ``begin``: what that
    thread does first. ``announce``: called with the number of plans in flight, whenever it changes, and the seconds of
    the shortest of the last steps.
    """

    def __init__(
        self,
        runner: ModelRunner,
        send: Send,
        computing: Computing = nullcontext,
        begin: Callable[[], object] = lambda: None,
        announce: Callable[[int, float], object] = lambda num_plans, step_s: None,
    ) -> None:
        self._runner, self._send, self._computing, self._begin = runner, send, computing, begin
        self._announce = announce
        self._num_in_flight = 0
        self._step_s: deque[float] = deque(maxlen=_LAST_STEPS)
        self._lock = threading.Lock()
        self._launched: SimpleQueue[tuple[StepPlan, InFlight] | None] = SimpleQueue()
        self._num_collected = 0
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="results", daemon=True)

    def __enter__(self) -> PlansAhead:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._launched.put(None)
        self._thread.join(_ENDS_WITHIN_S)
        if self._thread.is_alive():
            logger.error(
                "the device has not answered for %.0f s; this process ends without its results", _ENDS_WITHIN_S
            )

    def compute(self, plan: StepPlan) -> None:
        with self._lock, self._computing():
            in_flight = self._runner.launch(plan)
            self._num_in_flight += 1
            self._announce(self._num_in_flight, min(self._step_s, default=0.0))
        self._launched.put((plan, in_flight))

    def progress(self) -> int:
        if self._error is not None:
            raise self._error
        return self._num_collected

    def _run(self) -> None:
        try:
            self._begin()
            while (launched := self._launched.get()) is not None:
                self._collect(*launched)
        except Exception as error:  # the boundary of the thread: the main thread raises it again and ends the process
            logger.exception("a result could not be collected")
            self._error = error

    def _collect(self, plan: StepPlan, in_flight: InFlight) -> None:
        in_flight.wait()
        with self._lock:
            result = self._runner.collect(in_flight)
            self._num_in_flight -= 1
            if result.forward_s:
                self._step_s.append(result.forward_s)
            self._announce(self._num_in_flight, min(self._step_s, default=0.0))
        if plan.steps:
            self._send(result)
        self._num_collected += 1
        with self._lock:
            self._runner.prepare()


def serve(
    inbox: LockstepReceiver[RankInbound], plans: Plans, heartbeat: HeartbeatSender, sent_rows: SentRows | None = None
) -> None:
    """Compute plans as they arrive. ``sent_rows``: gets the embedding rows that come with plans.

    Ends only by an exception: BrokenLink if a plan is missing, repeated or does not decode.
    """
    last_step_id = progress = 0
    while True:
        arrived = inbox.drain(block=True, timeout_s=INTERVAL_S)
        before, progress = progress, plans.progress()
        heartbeat.beat(busy=bool(arrived) or progress < last_step_id, progressed=bool(arrived) or progress > before)
        for message in arrived:
            plan, pieces = (message, ()) if isinstance(message, StepPlan) else (message.plan, message.pieces)
            if sent_rows is not None:
                sent_rows.replace(pieces)
            last_step_id += 1
            if plan.step_id != last_step_id:
                raise BrokenLink(f"the plan of step {plan.step_id} came instead of that of step {last_step_id}")
            plans.compute(plan)
