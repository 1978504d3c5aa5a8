"""How training puts questions: orders become requests that want the same answer."""

from __future__ import annotations

import random

import pytest

from training.words.phrasebook import ASKED, polite, put


@pytest.mark.parametrize("seed", range(20))
def test_an_order_asked_politely_keeps_its_words_and_ends_as_its_opening_asks(seed: int) -> None:
    said = polite("Read the number in the first picture.", random.Random(seed))
    opening, mark = next(each for each in ASKED if said.startswith(f"{each[0]} read"))
    assert said == f"{opening} read the number in the first picture{mark}"


def test_only_orders_become_requests() -> None:
    rng = random.Random(7)
    openings = tuple(opening for opening, _ in ASKED)
    asked = [put("Is it a purple cat?", rng) for _ in range(500)]
    assert not any(text.startswith(openings) for text in asked)
    ordered = [put("Tell me of purple cats.", rng) for _ in range(500)]
    assert 155 < sum(text.startswith(openings) for text in ordered) < 235
