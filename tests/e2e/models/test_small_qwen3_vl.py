"""The small trained Qwen3-VL: what a picture shows decides its answers, so a wrong grid or axis is a wrong answer.

`python -m training.qwen3_vl.evaluate` asks more. No single picture is nearer to a square than 1.5:1: rows and
columns differ. In a prompt of several, which picture is meant decides the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

import training
from benchmarks.load.server import serve
from tests.e2e.stack import LITTLE_MEMORY, Stack
from training.exam import ask
from training.exam.sets import Answer, exact
from training.qwen3_vl import evaluate
from training.qwen3_vl.questions import HELD_OUT
from training.sample import Sample

pytestmark = pytest.mark.families

CHECKPOINT = Path(training.__file__).parent / "qwen3_vl" / "checkpoint"
SEED = 20
CHUNKS = ("--max-num-seqs", "8", "--max-num-batched-tokens", "16")
"""Smaller than any picture."""
COSTS = {
    "axes swapped": "side",
    "grid transposed": "count",
    "patches by line": "count",
    "no DeepStack": "colour",
}
"""The kind of question that loses most by each mistake."""


def right(questions: Sequence[Sample], answers: Sequence[Answer]) -> float:
    """Share of right answers."""
    return sum(map(exact, questions, answers)) / len(questions)


def test_held_out_questions_on_long_and_on_several_pictures_are_answered() -> None:
    asked = evaluate.questions(evaluate.KINDS, 12, SEED, 1.5)
    options = ("--dtype", "float32", *LITTLE_MEMORY, "--http-workers", "1")
    with serve(*options, *CHUNKS, model=str(CHECKPOINT)) as target:
        assert target.pid is not None
        ask_all = ask.server(f"{target.url}/v1", None, "none", 8)
        cold, again = (list(ask_all(asked)) for _ in range(2))
        Stack(target.url, target.pid).check_all_released()
    one = len(HELD_OUT) * 12
    for answers in (cold, again):
        assert right(asked[:one], answers[:one]) >= 0.85
        assert right(asked[one:], answers[one:]) >= 0.85


@cache
def answered(kind: str) -> tuple[list[Sample], float]:
    """Questions, and the share that transformers answers rightly."""
    questions = evaluate.questions((kind,), 20, SEED + 1, 2.0)
    return questions, right(questions, list(evaluate.directory(CHECKPOINT)(questions)))


@pytest.mark.parametrize("mistake", COSTS)
def test_a_mistake_costs_answers(mistake: str) -> None:
    """What the test above would see of such a mistake in the server: here, transformers makes it."""
    questions, before = answered(COSTS[mistake])
    with evaluate.MISTAKES[mistake]():
        after = right(questions, list(evaluate.directory(CHECKPOINT)(questions)))
    assert after <= before - 0.2
