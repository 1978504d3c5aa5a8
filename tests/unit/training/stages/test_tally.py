"""Counting learns from what it has seen more than once; a resumed run has nothing to go back to at first."""

from __future__ import annotations

from collections import Counter

from training.stages.tally import AGAIN, repeated


def test_every_step_ends_with_its_own_pictures() -> None:
    made = [(step, f"batch {step}") for step in range(700, 800)]
    assert [(step, batches[-1]) for step, batches in repeated(made)] == made


def test_pictures_are_learned_from_as_often_as_is_said_and_never_before_they_are_drawn() -> None:
    steps = max(AGAIN) * 3
    used: dict[int, list[int]] = {}
    for step, batches in repeated((step, step) for step in range(steps)):
        for number in batches:
            used.setdefault(number, []).append(step)
    whole = {number: at for number, at in used.items() if number < steps - max(AGAIN)}
    assert Counter(map(len, whole.values())) == {1 + len(AGAIN): len(whole)}
    assert all(at == sorted(number + ago for ago in (0, *AGAIN)) for number, at in whole.items())
