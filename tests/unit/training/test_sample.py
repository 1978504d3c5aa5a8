"""Samples: fixed by their seed, an even mix of kinds, with answers that fit the pictures."""

import base64
import io
from collections import Counter

import pytest
from PIL import Image

from training.sample import FIRST_SEED, KINDS, samples
from training.words.questions import ASK


def test_the_same_seed_gives_the_same_samples_and_another_seed_others() -> None:
    assert list(samples(14, 5)) == list(samples(14, 5))
    assert list(samples(14, 5)) != list(samples(14, 6))


def test_kinds_take_turns() -> None:
    counts = Counter(sample.kind for sample in samples(28, 1))
    assert counts == dict.fromkeys(KINDS, 2)
    assert {sample.kind for sample in samples(6, 1, ["count", "two"])} == {"count", "two"}
    with pytest.raises(ValueError, match="unknown kinds"):
        next(samples(1, 1, ["taste"]))


def test_messages_hold_the_images_in_order() -> None:
    for sample in samples(42, 2):
        parts = [
            part for message in sample.messages if isinstance(message["content"], list) for part in message["content"]
        ]
        urls = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
        assert [base64.b64decode(url.partition(",")[2]) for url in urls] == sample.images
        assert all(Image.open(io.BytesIO(image)).size >= (64, 64) for image in sample.images)
        assert sample.messages[-1]["role"] == "user"
        assert sample.answer


def test_held_out_seeds_are_beyond_those_of_training() -> None:
    # Training uses the seeds seed * 10**9 + step * batch, and twice that for scenes; its default seeds are 1 to 3.
    assert FIRST_SEED > 2 * (3 + 1) * 10**9
    assert set(ASK) < set(KINDS)
