"""Training's varied pictures and honest answers: drawn again alike, true to their scene, and its own."""

from __future__ import annotations

import random

import numpy as np
import pytest

from training.exam import honesty
from training.pictures import fonts, labels, looks
from training.pictures.scenes import make_scene
from training.pictures.world import COLOURS, SHAPES
from training.words import honest
from training.words.phrasebook import put
from training.words.phrases import tally


@pytest.fixture(scope="module", autouse=True)
def typefaces() -> None:
    try:
        fonts.check(fonts.TRAINING)
    except FileNotFoundError as missing:
        pytest.skip(str(missing))


def test_the_same_seed_gives_the_same_picture_and_shapes_have_their_colours() -> None:
    for seed in range(40):
        scene = looks.scene(seed)
        picture = looks.draw(scene)
        assert picture.size == (scene.width, scene.height)
        assert np.array_equal(np.asarray(picture), np.asarray(looks.draw(looks.scene(seed))))
        for item in scene.shapes:
            pixel = picture.getpixel((int(item.x * scene.width), int(item.y * scene.height)))
            assert np.abs(np.array(pixel) - np.array(COLOURS[item.colour])).max() <= 42


def test_scenes_reach_three_to_one_and_some_backgrounds_have_no_name() -> None:
    scenes = [looks.scene(seed) for seed in range(300)]
    aspects = [scene.width / scene.height for scene in scenes]
    assert min(aspects) < 0.38
    assert max(aspects) > 2.6
    nameless = [scene for scene in scenes if not scene.background]
    assert nameless
    assert not labels.code(nameless[0])[:, labels.GROUPS["ground"]].any()


def test_what_is_said_to_be_missing_is_missing() -> None:
    rng = random.Random(3)
    for seed in range(120):
        scene = make_scene(seed)
        question, answer = honest.about_picture(scene, rng)
        for name in SHAPES:
            if answer == f"There is no {name}.":
                assert f"the {name}" in question.lower()
                assert tally(scene, None, name) == 0


def test_training_asks_none_of_the_examinations_unanswerable_questions() -> None:
    rng = random.Random(5)
    asked = {honest.outside(rng)[0] for _ in range(4000)}
    assert not asked & set(honesty.OUTSIDE)


def test_a_question_put_otherwise_keeps_its_names() -> None:
    rng = random.Random(1)
    for _ in range(400):
        text = put("Is the red star to the left of the circle?", rng).lower()
        assert all(word in text for word in ("red star", "left", "circle"))
