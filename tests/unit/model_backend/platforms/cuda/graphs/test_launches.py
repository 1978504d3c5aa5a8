"""A captured decode step on a device that computes late: what the host launches, and that it waits for nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from mmserve.config.config import Config
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import StepPlan
from mmserve.model_backend.worker.model_runner import ModelRunner
from tests.fakes.devices.graph_capture import LateGraphs
from tests.fakes.devices.late_device import LateDevice
from tests.fakes.models.checkpoints import make_llama, make_text
from tests.fakes.ranks.engine import make_runner
from tests.fakes.ranks.grammars import JSON
from tests.fakes.ranks.plans_ahead import plans, run

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 1.0, "seed": 4, "top_p": 0.8, "top_k": 50},
    "logprobs": {"temperature": 1.0, "seed": 9, "logprobs": 2},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.4},
    "grammar": {"temperature": 0.0, "grammar": JSON},
}


class Rank(NamedTuple):
    """One that captures its decode steps, or launches their kernels one by one."""

    device: LateDevice
    runner: ModelRunner
    platform: LateGraphs


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def device() -> Iterator[LateDevice]:
    with LateDevice() as device:
        yield device


def late_rank(directory: Path, device: LateDevice, *, eager: bool) -> Rank:
    device.loading, platform = True, LateGraphs(device)
    config = Config(model=str(directory), max_num_seqs=8, enforce_eager=eager)
    runner = make_runner(directory, platform=platform, config=config)
    device.loading = False
    return Rank(device, runner, platform)


@pytest.fixture(scope="module")
def capturing(directory: Path, device: LateDevice) -> Rank:
    return late_rank(directory, device, eager=False)


@pytest.fixture(scope="module")
def launching(directory: Path, device: LateDevice) -> Rank:
    return late_rank(directory, device, eager=True)


def made(kind: str) -> list[StepPlan]:
    return plans(4, SamplingParams(max_tokens=100, **KINDS[kind]))


@pytest.mark.parametrize("kind", ["greedy", "drawn"])
def test_a_step_is_two_copies_to_the_device_one_replay_and_one_copy_back(capturing: Rank, kind: str) -> None:
    device, runner, platform = capturing
    waits = device.num_waits
    prompts, first, *others = made(kind)
    in_flight = [runner.launch(prompts), runner.launch(first)]  # a graph may have to be captured for it
    for plan in others:
        before = device.num_launches, platform.capture.num_replays
        in_flight.append(runner.launch(plan))
        assert (device.num_launches, platform.capture.num_replays) == (before[0] + 4, before[1] + 1)
    assert device.num_waits == waits
    assert device.num_queued > 0, "nothing is computed yet"
    assert [len(runner.collect(each).tokens) for each in in_flight] == [2] * 5


def test_a_mixture_of_experts_is_launched_as_often_and_nothing_waits_for_its_router(
    tmp_path: Path, device: LateDevice
) -> None:
    device, runner, platform = late_rank(make_text(tmp_path, "qwen3_moe"), device, eager=False)
    waits = device.num_waits
    prompts, first, *others = made("greedy")
    in_flight = [runner.launch(prompts), runner.launch(first)]
    for plan in others:
        before = device.num_launches, platform.capture.num_replays
        in_flight.append(runner.launch(plan))
        assert (device.num_launches, platform.capture.num_replays) == (before[0] + 4, before[1] + 1)
    assert device.num_waits == waits
    assert [len(runner.collect(each).tokens) for each in in_flight] == [2] * 5


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_steps_launched_one_kernel_after_the_other(
    capturing: Rank, launching: Rank, kind: str
) -> None:
    results = []
    for rank, depth in ((launching, 1), (capturing, 2)):
        while rank.runner.step(made(kind)[0]).deferred:
            pass  # its grammar is compiled
        before = rank.platform.capture.num_replays
        results.append(run(rank.runner, made(kind), depth))
        assert rank.platform.capture.num_replays == before + (4 if rank is capturing else 0)
    expected, found = results
    assert [result.tokens for result in found] == [result.tokens for result in expected]
    assert [result.failures for result in found] == [()] * 5
    assert [[slot for slot, _ in result.logprobs] for result in found] == [
        [slot for slot, _ in result.logprobs] for result in expected
    ]


@pytest.mark.parametrize("kind", ["greedy", "penalties"])
def test_a_step_that_could_not_be_sampled_is_computed_again_from_the_same_tokens(
    capturing: Rank, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    runner = capturing.runner
    expected = run(runner, made(kind), depth=1)
    sampling, failures = runner._sampling, []
    name = "_with_logprobs" if kind == "greedy" else "_draw"
    whole: Any = getattr(sampling, name)

    def failing(*arguments: Any) -> Any:
        if len(arguments[-2]) == 2 and len(failures) < 2:
            failures.append(len(runner._input_batch[0].tokens))
            raise RuntimeError("as it happens")
        return whole(*arguments)

    prompts, *others = made(kind)
    found = [runner.step(prompts)]
    monkeypatch.setattr(sampling, name, failing)
    found += run(runner, others, depth=1)
    assert len(failures) == 2
    assert [dict(result.tokens) for result in found] == [dict(result.tokens) for result in expected]
