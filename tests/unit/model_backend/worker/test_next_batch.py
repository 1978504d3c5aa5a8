"""The batch that is made while the router plans: used for the step it was made for, and for no other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import SequenceStep, StepPlan
from mmserve.model_backend.worker import model_runner
from mmserve.model_backend.worker.forward_batch import build_forward_batch
from mmserve.model_backend.worker.next_batch import NextBatch
from tests.fakes.models.checkpoints import make_llama
from tests.fakes.ranks.engine import make_runner
from tests.fakes.ranks.plans_ahead import plans

DONE = [SequenceStep(3, 0, 7, (1,), True), SequenceStep(1, 20, 1, (), True)]
NEXT = [SequenceStep(3, 7, 1, (), True), SequenceStep(1, 21, 1, (), True)]
GREEDY = SamplingParams(max_tokens=100, temperature=0.0)


class Built:
    """Remembers what was built."""

    def __init__(self) -> None:
        self.steps: list[list[SequenceStep]] = []

    def __call__(self, steps: Sequence[SequenceStep]) -> Any:
        self.steps.append(list(steps))
        return len(self.steps)


def test_the_same_sequences_go_on() -> None:
    next_batch = NextBatch(built := Built())
    next_batch.prepare(DONE)
    assert built.steps == [NEXT]
    assert next_batch.take(tuple(NEXT)) == 1
    assert next_batch.take(NEXT) is None, "it was taken"


@pytest.mark.parametrize(
    "steps",
    [
        NEXT[:1],
        NEXT[::-1],
        [NEXT[0], replace(NEXT[1], new_blocks=(5,))],
        [NEXT[0], replace(NEXT[1], start=22)],
        [NEXT[0], replace(NEXT[1], token_ids=(9,))],
        [NEXT[0], replace(NEXT[1], draft=(9,))],
        [NEXT[0], replace(NEXT[1], sample=False)],
        [*NEXT, SequenceStep(4, 0, 9, (2,), True)],
    ],
    ids=["one ended", "other order", "new block", "elsewhere", "brings a token", "draft", "no sample", "one started"],
)
def test_another_step_has_its_own_batch(steps: list[SequenceStep]) -> None:
    next_batch = NextBatch(Built())
    next_batch.prepare(DONE)
    assert next_batch.take(steps) is None
    assert next_batch.take(NEXT) is None, "what it was made for is past"


@pytest.mark.parametrize(
    "last", [replace(DONE[0], sample=False), replace(DONE[1], draft=(7,))], ids=["prompt", "draft"]
)
def test_nothing_is_made_where_it_is_not_known_what_follows(last: SequenceStep) -> None:
    next_batch = NextBatch(built := Built())
    next_batch.prepare([DONE[1], last])
    next_batch.prepare([])
    assert built.steps == []


def test_a_runner_that_prepares_computes_the_same_tokens_and_builds_no_batch_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plans(30, GREEDY)
    steps = [step for step in made[20].steps if step.slot == 1]
    made[20:] = [
        StepPlan(step_id=20, free=(0,), steps=tuple(steps)),
        *(replace(plan, steps=plan.steps[1:]) for plan in made[21:]),
    ]
    directory = make_llama(tmp_path)
    expected = [make_plain(result) for result in map(make_runner(directory).step, made)]
    runner, launching, built = make_runner(directory), False, []

    def build(*arguments: Any) -> Any:
        built.append(launching)
        return build_forward_batch(*arguments)

    monkeypatch.setattr(model_runner, "build_forward_batch", build)
    results = []
    for plan in made:
        launching = True
        results.append(make_plain(runner.step(plan)))
        launching = False
        runner.prepare()
    assert results == expected
    assert built.count(True) == 2, "the prompts, and the step after one has left"
    assert built.count(False) == len(made)


def make_plain(result: Any) -> Any:
    return replace(result, forward_s=0.0)
