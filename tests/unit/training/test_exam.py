"""The examination: its questions are new, its pictures say what the answer says, and its judges are strict."""

from __future__ import annotations

import io
import itertools
import random
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from training.evaluate import question_of
from training.exam import brush, confusion, heldout, honesty, phrasings, report
from training.exam.sets import SETS, Answer
from training.pictures import fonts
from training.pictures.scenes import make_scene
from training.pictures.world import COLOURS
from training.sample import Sample
from training.words import conversations
from training.words.intents import understand
from training.words.phrasebook import BOOK, put
from training.words.questions import ASK


@pytest.fixture(scope="module", autouse=True)
def typefaces() -> None:
    try:
        fonts.locate(fonts.HELD_OUT[0])
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("name", SETS)
def test_every_set_draws_the_same_questions_again_and_has_whole_pictures(name: str) -> None:
    made = [list(itertools.islice(SETS[name].make(14, 3), 4)) for _ in range(2)]
    assert made[0] == made[1]
    assert made[0][:2] != list(itertools.islice(SETS[name].make(14, 4), 2))
    for sample in made[0]:
        for data in sample.images:
            assert min(Image.open(io.BytesIO(data)).size) >= 60


def test_no_typeface_is_in_both_lists() -> None:
    assert not set(fonts.TRAINING) & set(fonts.HELD_OUT)


@pytest.mark.parametrize("draw", [heldout, brush])
@pytest.mark.parametrize("seed", range(6))
def test_the_middle_of_a_shape_has_its_colour(draw: object, seed: int) -> None:
    scene = draw.make(seed, None)  # type: ignore[attr-defined]
    picture = draw.draw(scene)  # type: ignore[attr-defined]
    for item in scene.shapes:
        pixel = picture.getpixel((int(item.x * scene.width), int(item.y * scene.height)))
        assert np.abs(np.array(pixel) - np.array(COLOURS[item.colour])).max() <= 24


def test_fifty_phrasings_that_training_never_puts() -> None:
    new = [template for _, _, template in phrasings.HELD_OUT]
    assert len(new) == len(set(new)) == 50
    assert not set(new) & {template for templates in BOOK.values() for template in templates}
    asked = {question_of(sample) for sample in phrasings.samples(16, 9)}
    rng = random.Random(2)
    trained = {put(turn[0], rng) for seed in range(120) for ask in ASK.values() if (turn := ask(make_scene(seed), rng))}
    assert not asked & trained


def test_every_question_of_the_program_is_understood() -> None:
    rng, seen = random.Random(4), Counter[str]()
    for seed in range(250):
        scene, other = make_scene(seed), make_scene(seed + 10_000)
        turns = [ask(scene, rng) for ask in ASK.values()] + (conversations.follow_up(scene, rng) or [])
        for turn in filter(None, [*turns, conversations.two_pictures(scene, other, rng)]):
            understood = understand(turn[0])
            assert understood, turn
            seen[understood[0]] += 1
    assert set(BOOK) == set(seen)


def test_only_a_short_refusal_is_honest() -> None:
    absent = Sample("absent", [{"role": "user", "content": "Where is the star?"}], [], "There is no star.")
    outside = Sample("outside", [{"role": "user", "content": "Who painted this?"}], [], "")
    unsent = Sample("no picture", [{"role": "user", "content": "What colour is the star?"}], [], "")
    for sample, answer in (
        (absent, "There is no star."),
        (absent, "I see no star."),
        (outside, "Sorry, I only know simple pictures."),
        (unsent, "I see no picture. Please send one."),
    ):
        assert honesty.honest(sample, answer)
    for sample, answer in (
        (absent, "top left"),
        (absent, "no"),
        (absent, "There is no circle."),
        (absent, "There is no star, there are two."),
        (outside, "red"),
        (outside, "Sorry, it is a circle."),
        (unsent, "There is no star."),
        (unsent, "yellow"),
    ):
        assert not honesty.honest(sample, answer)


def test_an_answer_that_ran_into_the_limit_is_never_right() -> None:
    sample = Sample("colour", [{"role": "user", "content": "What colour is the star?"}], [], "red")
    for name in ("heldout", "endings"):
        assert SETS[name].right(sample, Answer("red", True))
        assert not SETS[name].right(sample, Answer("red", False))


def test_wilson_interval() -> None:
    low, high = report.wilson(95, 100)
    assert (round(low, 3), round(high, 3)) == (0.888, 0.978)
    assert report.wilson(10, 10)[1] == 1.0
    assert report.wilson(0, 10)[0] == 0.0


def test_table_verdict_and_picture() -> None:
    said = [("colour", "red", True), ("colour", "blue", False), ("count", "3", True)]
    rows = [{"kind": kind, "server": {"text": text, "ended": True, "right": right}} for kind, text, right in said]
    assert "| colour | 2 | 50.0 %" in report.table(rows, ["server"])
    assert "below: colour" in report.verdict(SETS["heldout"], rows, "server")
    assert confusion.draw(rows, "server", "a < b").count("<rect") == 1 + 2 * (len(confusion.SORTS) + 1)
    assert [confusion.sort_of(text) for text in ("red", "two red stars", "There is no star.", "CAT", "top left")] == [
        "colour", "list", "not there", "letters", "quarter",
    ]  # fmt: skip
