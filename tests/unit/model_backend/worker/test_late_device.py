"""A rank whose device computes late: a launch waits for nothing that it does not need, and no token changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import NewSequence, SequenceStep, StepPlan
from mmserve.model_backend.worker.model_runner import ModelRunner
from tests.fakes.devices.late_device import HostSync, LateDevice, LatePlatform
from tests.fakes.models.checkpoints import make_llama
from tests.fakes.ranks.engine import make_runner
from tests.fakes.ranks.grammars import JSON
from tests.fakes.ranks.plans_ahead import plans, run
from tests.unit.model_backend.worker.test_model_runner import PARAMETERS

FREE = ("greedy", "cut", "logprobs", "bias", "allowed", "all of the prompt")
"""Kinds of sequences whose next step needs nothing from the host."""
KINDS: dict[str, dict[str, Any]] = PARAMETERS | {
    "cut": {"temperature": 1.0, "seed": 4, "top_p": 0.8, "min_p": 0.01},
    "bias": {"temperature": 0.0, "logit_bias": {5: 3.0, 100: 1.0}},
    "allowed": {"temperature": 1.0, "seed": 1, "allowed_token_ids": tuple(range(7, 250, 9))},
    "grammar": {"temperature": 0.0, "grammar": JSON},
    "all of the prompt": {"temperature": 0.0, "prompt_logprobs": 2},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def device() -> Iterator[LateDevice]:
    with LateDevice() as device:
        yield device


def late_runner(directory: Path, device: LateDevice) -> ModelRunner:
    runner = make_runner(directory, platform=LatePlatform(device))
    device.loading = False
    return runner


def made(kind: str, num_decodes: int = 3) -> list[StepPlan]:
    return plans(num_decodes, SamplingParams(max_tokens=100, **KINDS[kind]))


def compile_grammar(runner: ModelRunner, kind: str) -> None:
    """So that no sequence is deferred from here on."""
    while runner.step(made(kind)[0]).deferred:
        pass


@pytest.mark.parametrize("kind", KINDS)
def test_results_are_those_of_a_device_that_computes_at_once(directory: Path, device: LateDevice, kind: str) -> None:
    plain, runner = make_runner(directory), late_runner(directory, device)
    for each in (plain, runner):
        compile_grammar(each, kind)
    expected, found = run(plain, made(kind), depth=1), run(runner, made(kind), depth=2)
    assert [result.failures for result in found] == [()] * 4
    assert [result.tokens for result in found] == [result.tokens for result in expected]
    assert [len(result.logprobs) for result in found] == [len(result.logprobs) for result in expected]
    assert [len(result.prompt_logprobs) for result in found] == [2 * (kind == "all of the prompt"), *[0] * 3]


@pytest.mark.parametrize("kind", FREE)
def test_launches_wait_for_nothing(directory: Path, device: LateDevice, kind: str) -> None:
    runner = late_runner(directory, device)
    queued, in_flight = [], []
    for plan in made(kind):
        in_flight.append(runner.launch(plan))
        queued.append(device.num_queued)
    assert queued == sorted(queued)
    assert queued[0] > 0
    first = runner.collect(in_flight[0])
    assert len(first.tokens) == 2
    assert queued[-1] - device.num_queued <= queued[0], "the plans after the first are not waited for"
    assert [len(runner.collect(each).tokens) for each in in_flight[1:]] == [2] * 3


def test_a_plan_that_samples_nothing_is_waited_for(directory: Path, device: LateDevice) -> None:
    """Else its time were that of the launch alone, and a long prompt would be launched whole."""
    runner = late_runner(directory, device)
    first = made("greedy")[0]
    plan = replace(first, steps=tuple(replace(step, sample=False) for step in first.steps))
    in_flight = runner.launch(plan)
    assert device.num_queued > 0
    in_flight.wait()
    assert device.num_queued == 0
    assert runner.collect(in_flight).tokens == ()


@pytest.mark.parametrize("kind", ["penalties", "min_tokens", "bad_words", "grammar"])
def test_what_depends_on_tokens_waits_for_the_plan_before_alone(directory: Path, device: LateDevice, kind: str) -> None:
    runner = late_runner(directory, device)
    compile_grammar(runner, kind)
    launched = [runner.launch(plan) for plan in made(kind)[:2]]
    assert launched[0].sampled[0].known_tokens is not None
    assert launched[1].sampled[0].known_tokens is None
    assert device.num_queued > 0, "the second plan was launched, and is not computed"
    assert [len(runner.collect(each).tokens) for each in launched] == [2, 2]


def test_a_sequence_that_fails_late_spoils_no_other(directory: Path, device: LateDevice) -> None:
    runner = late_runner(directory, device)
    sampling = SamplingParams(max_tokens=100, temperature=0.0)
    first, second, third, *_ = plans(3, sampling)
    banned = replace(sampling, allowed_token_ids=(5,), logit_bias={}, bad_words=((5,),))
    first = replace(first, new=(replace(first.new[0], sampling=banned), first.new[1]))
    expected = run(make_runner(directory), plans(2, sampling), depth=1)
    found = [runner.launch(plan) for plan in (first, second, third)]
    results = [runner.collect(each) for each in found]
    assert [[failure.slot for failure in result.failures] for result in results] == [[0]] * 3
    assert [dict(result.tokens)[1] for result in results] == [dict(result.tokens)[1] for result in expected]


def test_a_freed_slot_is_taken_while_its_last_step_is_computed(directory: Path, device: LateDevice) -> None:
    sampling = SamplingParams(max_tokens=100, temperature=0.0)
    first, second, *_ = plans(2, sampling)
    taken = StepPlan(
        step_id=2, free=(0,), new=(replace(first.new[1], slot=0),), steps=(SequenceStep(0, 0, 3, (30,), True),)
    )
    decode = StepPlan(step_id=3, steps=(SequenceStep(0, 3, 1, (), True),))
    expected = run(make_runner(directory), [first, second, taken, decode], depth=1)
    found = run(late_runner(directory, device), [first, second, taken, decode], depth=4)
    assert [result.tokens for result in found] == [result.tokens for result in expected]


def test_the_device_notices_who_waits_for_it(directory: Path, device: LateDevice) -> None:
    runner = late_runner(directory, device)
    runner.launch(made("greedy")[0])
    tokens = runner._sampling.last_token
    with pytest.raises(HostSync, match="host"):
        tokens.add_(torch.ones(8, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="tolist"):
        tokens.tolist()
    with pytest.raises(HostSync, match="reads"):
        tokens.cpu()
    with pytest.raises(HostSync, match="reads"):
        int(tokens[0])


def test_memory_that_runs_out_costs_a_retry_of_its_own_plan_in_parts(
    directory: Path, device: LateDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a prompt's chunk beside a decoding sequence, while the plan before is computed, which nobody waits for."""
    sampling = SamplingParams(max_tokens=100, temperature=0.0)
    first, _, *_ = plans(2, sampling)
    alone = replace(first, new=first.new[:1], steps=first.steps[:1])
    chunk = NewSequence(slot=2, token_ids=bytes(8 * 12), num_prompt_tokens=12, spans=(), sampling=sampling)
    beside = StepPlan(
        step_id=2,
        new=(chunk,),
        steps=(SequenceStep(0, first.steps[0].num_tokens, 1, (), True), SequenceStep(2, 0, 12, (20, 21), True)),
    )
    expected = run(make_runner(directory), [alone, beside], depth=1)
    runner = late_runner(directory, device)
    embed, tries = runner._model.embed, list[int]()

    def short(token_ids: torch.Tensor) -> torch.Tensor:
        tries.append(len(token_ids))
        if len(token_ids) > 7:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return embed(token_ids)

    in_flight = [runner.launch(alone)]
    queued = device.num_queued
    monkeypatch.setattr(runner._model, "embed", short)
    in_flight.append(runner.launch(beside))
    assert device.num_queued > queued
    found = [runner.collect(each) for each in in_flight]
    assert [result.tokens for result in found] == [result.tokens for result in expected]
    assert [result.out_of_memory for result in found] == [False, True]
    assert not any(result.failures for result in found)
    assert tries == [13, 6, 7], "halves of the plan, whose chunk is cut"
