"""Plans may be launched before the results of earlier ones are collected."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch

from mmserve.config.config import Config
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import SequenceStep, StepPlan
from mmserve.model_backend.platforms.cpu import platform
from mmserve.model_backend.worker import model_runner
from tests.fakes.models.checkpoints import make_llama
from tests.fakes.ranks.engine import make_runner, spoil_embedding
from tests.fakes.ranks.plans_ahead import PROMPTS, plans, run
from tests.unit.model_backend.platforms.cpu.kernels import needs_compiler

PARAMETERS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 1.3, "top_k": 50, "seed": 5},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    "min_tokens": {"temperature": 0.0, "min_tokens": 6, "stop_token_ids": tuple(range(0, 200, 3))},
    "bad_words": {"temperature": 0.0, "bad_words": tuple((a, b) for a in range(0, 260, 2) for b in (5, 7, 11))},
    "logprobs": {"temperature": 1.0, "seed": 9, "logprobs": 3},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("parameters", PARAMETERS.values(), ids=PARAMETERS)
def test_results_do_not_depend_on_how_many_plans_are_in_flight(
    directory: Path, parameters: dict[str, Any], depth: int
) -> None:
    made = plans(12, SamplingParams(max_tokens=100, **parameters))
    alone = run(make_runner(directory), made, depth=1)
    ahead = run(make_runner(directory), made, depth)
    assert [result.step_id for result in ahead] == list(range(13))
    assert [result.tokens for result in ahead] == [result.tokens for result in alone]
    assert [result.logprobs for result in ahead] == [result.logprobs for result in alone]
    assert all(len(result.tokens) == 2 and not result.failures for result in ahead)


def test_a_plan_that_waited_for_the_one_before_it_took_no_longer(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, seconds = make_runner(directory), itertools.count(1)
    monkeypatch.setattr(model_runner.time, "perf_counter", lambda: float(next(seconds)))
    made = plans(3, SamplingParams(max_tokens=100, temperature=0.0))
    launched = [runner.launch(plan) for plan in made[:3]]
    results = [runner.collect(each) for each in launched]
    assert [result.forward_s for result in results] == [4 - 1, 5 - 4, 6 - 5]
    assert runner.step(made[3]).forward_s == 8 - 7


def test_a_sequence_that_fails_while_its_next_plan_is_in_flight(directory: Path) -> None:
    runner = make_runner(directory)
    expected = run(make_runner(directory), plans(3, SamplingParams(max_tokens=100, temperature=0.0)), depth=1)
    spoil_embedding(runner, PROMPTS[1][-1])
    results = run(runner, plans(3, SamplingParams(max_tokens=100, temperature=0.0)), depth=2)
    assert [result.tokens[0] for result in results] == [result.tokens[0] for result in expected]
    assert [failure.slot for failure in results[0].failures] == [1]


def test_a_chunk_of_tokens_that_are_not_known_yet_is_refused(directory: Path) -> None:
    runner = make_runner(directory)
    first, second, *_ = plans(2, SamplingParams(max_tokens=100, temperature=0.0))
    launched = [runner.launch(first), runner.launch(second)]
    whole = SequenceStep(slot=1, start=0, num_tokens=len(PROMPTS[1]) + 2, new_blocks=(), sample=True)
    refused = runner.launch(StepPlan(step_id=2, steps=(whole,)))
    results = [runner.collect(each) for each in (*launched, refused)]
    assert [len(result.tokens) for result in results] == [2, 2, 0]
    assert "not known yet" in results[2].failures[0].message


def test_the_last_token_of_each_slot_is_on_the_device(directory: Path) -> None:
    runner = make_runner(directory)
    results = run(runner, plans(4, SamplingParams(max_tokens=100, temperature=0.0)), depth=1)
    assert runner._sampling.last_token[:2].tolist() == [tokens[-1] for _, tokens in sorted(results[-1].tokens)]
    assert runner._sampling.last_token.dtype is torch.int64


@needs_compiler
@pytest.mark.parametrize("ways", ["auto", "kept", "default"])
def test_the_ways_of_the_kernels_follow_their_option(
    ways: Any, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are chosen once, for all matrices of the loaded model."""
    chosen: list[tuple[str, int]] = []

    def note(kernels: Any, threads: int, linears: Any, ways: str) -> None:
        chosen.append((ways, sum(linear.packed.numel() for linear in linears)))

    monkeypatch.setattr(platform, "choose_ways", note)
    make_runner(directory, config=Config(model=str(directory), max_num_seqs=8, kernel_ways=ways))
    (found,) = chosen
    assert found[0] == ways
    assert found[1] > 0
