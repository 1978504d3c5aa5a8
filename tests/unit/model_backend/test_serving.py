"""The loop of a rank, with fakes for its links and its model; and with a device that computes late."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from mmserve.ipc.links.lockstep import BrokenLink
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import SequenceStep, StepPlan, StepResult
from mmserve.model_backend import serving
from mmserve.model_backend.serving import PlansAhead, PlansAtOnce, serve
from mmserve.model_backend.worker.model_runner import ModelRunner
from tests.fakes.devices.late_device import LateDevice, LatePlatform
from tests.fakes.models.checkpoints import make_llama
from tests.fakes.ranks.engine import make_runner
from tests.fakes.ranks.plans_ahead import plans, run

STEP = (SequenceStep(0, 0, 4, (1,), True),)


class Inbox:
    """Hands out the given batches of plans, then ends the loop."""

    def __init__(self, *batches: list[StepPlan]) -> None:
        self._batches: Iterator[list[StepPlan]] = iter(batches)

    def drain(self, *, block: bool, timeout_s: float) -> list[StepPlan]:
        return next(self._batches)


class InFlight:
    """A launched plan, which the device computes when it is told to."""

    def __init__(self, plan: StepPlan) -> None:
        self.plan = plan
        self.computed = threading.Event()

    def wait(self) -> None:
        self.computed.wait()


class Fakes:
    """Outbox, runner and heartbeat in one."""

    def __init__(self) -> None:
        self.launched: list[InFlight] = []
        self.collected: list[int] = []
        self.sent: SimpleQueue[int] = SimpleQueue()
        self.beats: list[tuple[bool, bool]] = []
        self.fails_at = 0
        self.seconds: Iterator[float] = iter(())
        """Of the steps."""

    def launch(self, plan: StepPlan) -> InFlight:
        self.launched.append(InFlight(plan))
        return self.launched[-1]

    def collect(self, in_flight: InFlight) -> StepResult:
        if in_flight.plan.step_id == self.fails_at:
            raise RuntimeError("the device is lost")
        self.collected.append(in_flight.plan.step_id)
        return StepResult(step_id=in_flight.plan.step_id, tokens=(), forward_s=next(self.seconds, 0.0))

    def send(self, result: StepResult) -> None:
        self.sent.put(result.step_id)

    def prepare(self) -> None:
        assert self.collected, "prepared only once a result is on its way"

    def beat(self, *, busy: bool, progressed: bool) -> None:
        self.beats.append((busy, progressed))


def plan(step_id: int, **changes: Any) -> StepPlan:
    return StepPlan(step_id=step_id, **({"steps": STEP} | changes))


def serve_at_once(*batches: list[StepPlan]) -> Fakes:
    fakes: Any = Fakes()
    inbox: Any = Inbox(*batches)
    with pytest.raises(StopIteration):
        serve(inbox, PlansAtOnce(fakes, fakes.send, nullcontext), fakes)
    return fakes


def test_plans_with_steps_are_answered_in_order() -> None:
    fakes = serve_at_once([plan(1), plan(2, steps=(), free=(3,))], [], [plan(3)])
    assert fakes.collected == [1, 2, 3]
    assert [fakes.sent.get(timeout=0) for _ in range(2)] == [1, 3]
    assert fakes.sent.empty()
    assert [busy for busy, _ in fakes.beats] == [True, False, True]


@pytest.mark.parametrize("step_ids", [[2], [1, 3], [1, 1], [1, 2, 1], [0]])
def test_a_plan_that_is_not_the_next_one_is_an_error(step_ids: list[int]) -> None:
    """A rank that went on would leave the router waiting for a result that never comes."""
    with pytest.raises(BrokenLink, match="step"):
        serve_at_once([plan(step_id) for step_id in step_ids])


def test_a_plan_is_launched_before_the_one_before_it_is_computed() -> None:
    fakes: Any = Fakes()
    with PlansAhead(fakes, fakes.send) as plans:
        for step_id, steps in ((1, STEP), (2, ()), (3, STEP)):
            plans.compute(plan(step_id, steps=steps))
        assert len(fakes.launched) == 3
        assert plans.progress() == 0
        assert fakes.sent.empty()
        for launched in fakes.launched:
            launched.computed.set()
        assert [fakes.sent.get(timeout=10) for _ in range(2)] == [1, 3]
    assert fakes.collected == [1, 2, 3]
    assert plans.progress() == 3


def test_a_rank_is_busy_while_its_device_computes() -> None:
    fakes: Any = Fakes()

    class Idle:
        """No plan for two seconds, then the first is computed."""

        def drain(self, *, block: bool, timeout_s: float) -> list[StepPlan]:
            if len(fakes.beats) == 0:
                return [plan(1)]
            if len(fakes.beats) == 3:
                fakes.launched[0].computed.set()
                assert fakes.sent.get(timeout=10) == 1
                plans.__exit__()
            if len(fakes.beats) == 5:
                raise StopIteration
            return []

    plans = PlansAhead(fakes, fakes.send).__enter__()
    inbox: Any = Idle()
    with pytest.raises(StopIteration):
        serve(inbox, plans, fakes)
    assert fakes.beats == [(True, True), (True, False), (True, False), (False, True), (False, False)]


def test_the_thread_that_collects_begins_with_the_device() -> None:
    """What it waits for is on the rank's own GPU, and a new thread's GPU is the first one."""
    fakes: Any = Fakes()
    threads = []
    with PlansAhead(fakes, fakes.send, begin=lambda: threads.append(threading.current_thread().name)) as plans:
        plans.compute(plan(1))
        fakes.launched[0].computed.set()
    assert threads == ["results"]
    assert fakes.collected == [1]


def test_an_error_of_the_device_ends_the_rank() -> None:
    fakes: Any = Fakes()
    fakes.fails_at = 1
    plans = PlansAhead(fakes, fakes.send)
    with plans:
        plans.compute(plan(1))
        fakes.launched[0].computed.set()
    inbox: Any = Inbox([])
    with pytest.raises(RuntimeError, match="lost"):
        serve(inbox, plans, fakes)


def test_a_device_that_answers_no_more_is_not_waited_for_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving, "_ENDS_WITHIN_S", 0.05)
    fakes: Any = Fakes()
    with PlansAhead(fakes, fakes.send) as plans:
        plans.compute(plan(1))
    assert "the device has not answered" in caplog.text
    fakes.launched[0].computed.set()
    assert fakes.sent.get(timeout=10) == 1


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


class Sending(SimpleQueue[StepResult]):
    send = SimpleQueue.put


def _collects_on(runner: ModelRunner, device: LateDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that collects makes tensors of the device too, for instance for penalties."""
    collect = runner.collect

    def on_device(in_flight: Any) -> StepResult:
        with device.in_another_thread():
            return collect(in_flight)

    monkeypatch.setattr(runner, "collect", on_device)


@pytest.mark.parametrize("parameters", [{"temperature": 0.0}, {"seed": 5}, {"seed": 2, "repetition_penalty": 1.4}])
def test_a_thread_collects_what_a_late_device_computes(
    directory: Path, parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plans(8, SamplingParams(max_tokens=100, **parameters))
    expected = run(make_runner(directory), made, depth=1)
    results = Sending()
    with LateDevice() as device:
        runner: ModelRunner = make_runner(directory, platform=LatePlatform(device))
        _collects_on(runner, device, monkeypatch)
        device.loading = False
        found = []
        with PlansAhead(runner, results.send) as ahead, torch.inference_mode():
            for number, each in enumerate(made):
                ahead.compute(each)
                if number:  # as a router does with two plans in flight
                    found.append(results.get(timeout=30))
        found.append(results.get(timeout=30))
    assert ahead.progress() == len(made)
    assert [result.tokens for result in found] == [result.tokens for result in expected]


def test_plans_in_flight_are_announced_with_the_shortest_of_the_last_steps() -> None:
    fakes, said = Fakes(), SimpleQueue[tuple[int, float]]()
    fakes.seconds = iter([0.02, 0.01, 0.0])  # the last one was not measured
    with PlansAhead(fakes, fakes.send, announce=lambda *each: said.put(each)) as ahead:  # type: ignore[arg-type]
        for step_id in (1, 2):
            ahead.compute(plan(step_id))
        for in_flight in fakes.launched:
            in_flight.computed.set()
        assert [fakes.sent.get() for _ in range(2)] == [1, 2]
        ahead.compute(plan(3))
        fakes.launched[-1].computed.set()
        assert fakes.sent.get() == 3
    found = [said.get() for _ in range(6)]
    assert found == [(1, 0.0), (2, 0.0), (1, 0.02), (0, 0.01), (1, 0.01), (0, 0.01)]
