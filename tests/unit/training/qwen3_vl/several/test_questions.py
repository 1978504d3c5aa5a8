"""Questions on several pictures: another order of the pictures has another answer."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")

from training.pictures.scenes import Item, Scene
from training.qwen3_vl.several.questions import HELD_OUT, of_one, samples, which

FIRST, SECOND = (Scene(200, 200, "white", "plain", 0) for _ in range(2))
FIRST.shapes = [
    Item("star", "red", "small", 0.2, 0.5, 0.1, 0.1),
    Item("circle", "blue", "small", 0.8, 0.5, 0.1, 0.1),
    Item("cross", "pink", "small", 0.5, 0.2, 0.1, 0.1),
]
SECOND.shapes = [
    Item("star", "blue", "small", 0.2, 0.5, 0.1, 0.1),
    Item("cross", "pink", "small", 0.5, 0.2, 0.1, 0.1),
]


def test_the_answer_for_one_picture_is_wrong_for_the_other() -> None:
    colours = {turn for seed in range(60) if (turn := of_one("colour", (FIRST, SECOND), random.Random(seed)))}
    shapes = {turn for seed in range(60) if (turn := of_one("shape", (FIRST, SECOND), random.Random(seed)))}
    assert {("first" in question, answer) for question, answer in colours} == {(True, "red"), (False, "blue")}
    assert {("first" in question, answer) for question, answer in shapes} == {(True, "circle"), (False, "star")}
    assert all("star" in question for question, _ in colours)
    assert all("blue" in question for question, _ in shapes)


def test_a_picture_is_asked_for_by_what_it_alone_has() -> None:
    assert {which((FIRST, SECOND), random.Random(seed)) for seed in range(9)} == {
        ("Which picture has a circle?", "the first"),
        ("Which picture shows a circle?", "the first"),
    }
    assert which((FIRST, FIRST), random.Random(1)) is None


def test_held_out_questions_have_two_or_three_pictures_and_repeat() -> None:
    drawn = list(samples(8, 2))
    assert drawn == list(samples(8, 2))
    assert [sample.kind for sample in drawn] == [*HELD_OUT, *HELD_OUT]
    assert {len(sample.images) for sample in drawn} == {2, 3}
    for sample in drawn:
        turns = [message for message in sample.messages if message["role"] == "user"]
        assert len(turns) == (len(sample.images) if sample.kind == "side in the newest" else 1)
