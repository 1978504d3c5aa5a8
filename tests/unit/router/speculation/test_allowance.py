"""What drafts of a model may lose: a part of the time of steps, and what they have gained."""

from __future__ import annotations

from mmserve.router.speculation.allowance import Allowance

STEP_S = 0.01


def after_steps(count: int) -> Allowance:
    allowance = Allowance()
    for _ in range(count):
        allowance.observe_step(STEP_S, STEP_S)
    return allowance


def test_nothing_is_allowed_before_the_time_of_a_step_is_known() -> None:
    allowance = Allowance()
    assert not allowance.allows_drafts
    allowance.observe_step(0.0, 0.0)
    assert not allowance.allows_drafts
    allowance.observe_step(STEP_S, STEP_S)
    assert allowance.allows_drafts


def test_a_loss_is_paid_with_a_small_part_of_the_time_of_later_steps() -> None:
    allowance = after_steps(1)
    allowance.gain(-1.5 * STEP_S)
    num_steps = 0
    while not allowance.allows_drafts:
        allowance.observe_step(STEP_S, STEP_S)
        num_steps += 1
    assert 1.0 / num_steps < 0.02


def test_many_steps_earn_no_more_than_some() -> None:
    allowance = after_steps(10_000)
    allowance.gain(-5 * STEP_S)
    assert not allowance.allows_drafts


def test_what_drafts_saved_may_be_lost_again_but_not_all_that_they_ever_saved() -> None:
    allowance = after_steps(1)
    allowance.gain(5 * STEP_S)
    allowance.gain(-5 * STEP_S)
    assert allowance.allows_drafts
    allowance.gain(1000 * STEP_S)
    allowance.gain(-20 * STEP_S)
    assert not allowance.allows_drafts


def test_a_prompt_is_paid_with_a_part_of_the_time_of_steps_apart_from_drafts() -> None:
    allowance = after_steps(1)
    assert allowance.takes_catch_up(0.5 * STEP_S)
    assert not allowance.takes_catch_up(STEP_S)
    allowance.pay_catch_up(0.5 * STEP_S)
    assert not allowance.takes_catch_up(0.1 * STEP_S)
    assert allowance.allows_drafts
    num_steps = 0
    while not allowance.takes_catch_up(STEP_S):
        allowance.observe_step(STEP_S, STEP_S)
        num_steps += 1
    assert 1.0 / num_steps < 0.02


def test_what_drafts_saved_pays_for_prompts_too_and_long_ones_need_much() -> None:
    allowance = after_steps(1)
    allowance.gain(20 * STEP_S)
    assert allowance.takes_catch_up(20 * STEP_S)
    allowance.pay_catch_up(20 * STEP_S)
    assert not allowance.takes_catch_up(STEP_S)
    allowance.gain(1000 * STEP_S)
    assert not allowance.takes_catch_up(50 * STEP_S)


def test_a_prompt_that_took_longer_than_expected_is_paid_once() -> None:
    allowance = after_steps(1)
    allowance.pay_catch_up(100 * STEP_S)
    for _ in range(300):
        allowance.observe_step(STEP_S, STEP_S)
    assert allowance.takes_catch_up(STEP_S)
