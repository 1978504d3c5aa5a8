"""The packaged model calls functions and answers in JSON on held-out drawings, through each protocol."""

from __future__ import annotations

import pytest

from tests.e2e.stack import Stack
from training.exam.protocols import ways
from training.exam.sets import SETS

NUM_DRAWINGS = 10


@pytest.mark.parametrize("name", ["paint", "json"])
def test_nine_of_ten_drawings_are_right_in_every_protocol(default_stack: Stack, name: str) -> None:
    asked = SETS[name]
    drawings = list(asked.make(NUM_DRAWINGS, 1))
    for way, ask_all in ways(f"{default_stack.url}/v1", None, "none", concurrency=NUM_DRAWINGS).items():
        answers = list(ask_all(drawings))
        right = sum(asked.right(drawing, answer) for drawing, answer in zip(drawings, answers, strict=True))
        assert right >= 0.9 * NUM_DRAWINGS, (way, [answer.text for answer in answers])
