"""The step budget: prompt chunks shrink to fit the step time, but never to nothing."""

from __future__ import annotations

from math import inf

import pytest

from mmserve.router.scheduler.sequence import Sequence
from mmserve.router.scheduler.step_budget import (
    MIN_CHUNK_TOKENS,
    STEPS_TO_RECOVER,
    ChunkLimit,
    StepBudget,
    StepTimeModel,
)
from tests.unit.router.builders import request, span


def _trained(max_step_s: float, decode_s: float, token_s: float) -> StepTimeModel:
    """A model that has seen steps with two decoding sequences."""
    model = StepTimeModel(max_step_s)
    for _ in range(50):
        model.observe(2, 0, decode_s)
        model.observe(2, 100, decode_s + 100 * token_s)
    return model


def test_without_a_limit_steps_are_full() -> None:
    assert _trained(0.0, 0.03, 0.002).chunk_budget(4, 2044) == 2044
    assert _trained(0.0, 0.03, 0.002).chunk_budget(0, 2048) == 2048


@pytest.mark.parametrize(
    ("token_s", "num_tokens"),
    [(0.0005, 400), (0.001, 200), (0.00125, 160), (0.002, 160), (0.0025, 160), (0.004, 100), (0.01, 40)],
)
def test_steps_without_decoding_sequences_are_twice_as_long_and_longer_for_few_tokens(
    token_s: float, num_tokens: int
) -> None:
    model = _trained(0.1, 0.03, token_s)
    assert model.chunk_budget(0, 2048) == pytest.approx(num_tokens, abs=1)
    assert model.chunk_budget(0, 30) == 30


def test_before_the_first_prompt_steps_are_full() -> None:
    assert StepTimeModel(0.1).chunk_budget(4, 2044) == 2044


def test_tokens_worth_a_step_take_twice_as_long_as_decoding_and_5_ms() -> None:
    assert StepTimeModel(0.0).own_step_tokens == 0.0
    assert abs(_trained(0.0, 0.03, 0.002).own_step_tokens - 30) <= 1
    assert abs(_trained(0.0, 0.001, 0.0001).own_step_tokens - 50) <= 2


def test_there_is_always_room_to_start_without_a_limit_or_before_the_first_prompt() -> None:
    assert _trained(0.0, 0.03, 0.002).enough_to_start == inf
    assert StepTimeModel(0.1).enough_to_start == inf
    assert abs(_trained(0.1, 0.03, 0.002).enough_to_start - 30) <= 1


def test_a_chunk_fills_the_time_that_decoding_leaves() -> None:
    assert abs(_trained(0.1, 0.01, 0.002).chunk_budget(2, 2046) - 45) <= 1
    assert _trained(0.1, 0.01, 0.002).chunk_budget(2, 18) == 18


def test_prompts_get_their_share_when_decoding_alone_exceeds_the_limit() -> None:
    assert abs(_trained(0.1, 0.4, 0.002).chunk_budget(2, 2046) - 600) <= 2
    assert _trained(0.1, 0.4, 0.2).chunk_budget(2, 2046) == MIN_CHUNK_TOKENS


def test_decoding_sequences_beyond_those_of_decode_only_steps_are_not_charged_to_prompts() -> None:
    """With prompts in every step, no decode-only step is ever seen with 32 sequences."""
    model = StepTimeModel(0.1)
    model.observe(2, 0, 0.02)
    for _ in range(50):
        model.observe(32, 16, 0.02 + (30 + 16) * 0.002)
    assert abs(model.chunk_budget(32, 2016) - 120) <= 2


def test_one_slow_step_has_little_effect() -> None:
    model = _trained(0.1, 0.03, 0.001)
    model.observe(2, 100, 60.0)
    assert model.chunk_budget(2, 2046) > 58


def test_the_model_follows_a_machine_that_has_become_slower() -> None:
    model = _trained(0.1, 0.03, 0.001)
    for _ in range(50):
        model.observe(2, 100, 0.43)
    assert model.chunk_budget(2, 2046) <= 23


def test_prompts_with_images_get_two_thirds_of_a_step_beside_text() -> None:
    text = Sequence(request("text", [1] * 100), 0, 0.0, 1000)
    media = Sequence(request("media", [1] * 100, spans=(span(0, 9, 1),)), 1, 0.0, 1000)
    alone, beside_text = StepBudget(62, beside_text=False), StepBudget(62, beside_text=True)
    assert [alone.room(media), beside_text.room(media), beside_text.room(text)] == [62, 42, 62]
    assert [beside_text.take(media), beside_text.room(media), beside_text.take(text)] == [42, 0, 20]
    assert [beside_text.num_tokens, alone.take(text), alone.room(media)] == [0, 62, 0]


def test_chunks_are_halved_when_memory_runs_out_and_grow_again_later() -> None:
    limit = ChunkLimit(1000)
    limit.observe(600, out_of_memory=True)
    assert limit.num_tokens == 300
    limit.observe(0, out_of_memory=True)
    assert limit.num_tokens == MIN_CHUNK_TOKENS
    for expected in (32, 64, 128, 256, 512, 1000, 1000):
        for _ in range(STEPS_TO_RECOVER):
            limit.observe(10, out_of_memory=False)
        assert limit.num_tokens == expected


def test_a_step_without_memory_starts_the_wait_for_larger_chunks_again() -> None:
    limit = ChunkLimit(64)
    limit.observe(64, out_of_memory=True)
    for _ in range(STEPS_TO_RECOVER - 1):
        limit.observe(32, out_of_memory=False)
    limit.observe(64, out_of_memory=True)
    limit.observe(32, out_of_memory=False)
    assert limit.num_tokens == 16
