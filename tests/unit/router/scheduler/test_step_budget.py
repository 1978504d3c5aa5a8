"""The pace: chunks shrink to what a step may take, never to nothing."""

from __future__ import annotations

from mmserve.router.scheduler.step_budget import MIN_CHUNK_TOKENS, StepTimeModel


def _taught(max_step_s: float, decode_s: float, token_s: float) -> StepTimeModel:
    pace = StepTimeModel(max_step_s)
    for _ in range(50):
        pace.observe(2, 0, decode_s)
        pace.observe(2, 100, decode_s + 100 * token_s)
    return pace


def test_without_a_limit_steps_are_whole() -> None:
    assert _taught(0.0, 0.03, 0.002).budget_tokens(4, 2048) == 2048
    assert _taught(0.0, 0.03, 0.002).budget_tokens(0, 2048) == 2048


def test_while_nobody_writes_steps_are_longer_but_not_endless() -> None:
    assert abs(_taught(0.1, 0.03, 0.002).budget_tokens(0, 2048) - 100) <= 2
    assert _taught(0.1, 0.03, 0.002).budget_tokens(0, 50) == 50


def test_nothing_is_known_before_the_first_prompt() -> None:
    assert StepTimeModel(0.1).budget_tokens(4, 2048) == 2048


def test_a_chunk_fills_what_decoding_leaves_of_the_step() -> None:
    assert abs(_taught(0.1, 0.01, 0.002).budget_tokens(2, 2048) - 47) <= 1
    assert _taught(0.1, 0.01, 0.002).budget_tokens(2, 20) == 20


def test_prompts_get_on_when_decoding_alone_takes_longer_than_the_limit() -> None:
    assert abs(_taught(0.1, 0.4, 0.002).budget_tokens(2, 2048) - 602) <= 2
    assert _taught(0.1, 0.4, 0.2).budget_tokens(2, 2048) == 2 + MIN_CHUNK_TOKENS


def test_more_sequences_than_decoding_was_seen_with() -> None:
    """PromptBuilder come one behind the other, no step is without one: what 30 more decode is not the prompts' cost."""
    pace = StepTimeModel(0.1)
    pace.observe(2, 0, 0.02)
    for _ in range(50):
        pace.observe(32, 16, 0.02 + (30 + 16) * 0.002)
    assert abs(pace.budget_tokens(32, 2048) - (32 + 120)) <= 2


def test_one_slow_step_does_not_upset_it() -> None:
    pace = _taught(0.1, 0.03, 0.001)
    pace.observe(2, 100, 60.0)
    assert pace.budget_tokens(2, 2048) > 60


def test_it_follows_a_machine_that_has_become_slower() -> None:
    pace = _taught(0.1, 0.03, 0.001)
    for _ in range(50):
        pace.observe(2, 100, 0.43)
    assert pace.budget_tokens(2, 2048) <= 25
