"""A sequence whose grammar is not compiled when its first token is due starts again; others do not notice."""

from __future__ import annotations

import pytest

from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import SlotFailure, StepResult
from tests.fakes.ranks.rank import generate_alone
from tests.unit.router.builders import Engine, request

PROMPT, OTHER = list(range(100, 140)), list(range(300, 330))
LATE = 7
"""Seed of the sequence whose grammar is late."""


def generate(engine: Engine, prompt: list[int], **sampling: object) -> list[int]:
    return generate_alone(prompt, SamplingParams(**sampling), engine.context_tokens)[0]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("times", [1, 5])
def test_a_deferred_sequence_gets_its_tokens_later_and_others_get_theirs_now(depth: int, times: int) -> None:
    engine = Engine(depth=depth)
    engine.rank.num_pending[LATE] = times
    engine.scheduler.receive(request("late", PROMPT, max_tokens=6, seed=LATE))
    engine.scheduler.receive(request("other", OTHER, max_tokens=20))
    while len(engine.output("other")) < 3:
        engine.run_step()
        engine.check_memory()
    assert engine.scheduler._num_plans <= 3 + depth, "nobody waits for the late one"
    engine.run()
    assert engine.output("late") == generate(engine, PROMPT, max_tokens=6, seed=LATE)
    assert engine.output("other") == generate(engine, OTHER, max_tokens=20)
    assert (engine.finish("late"), engine.finish("other")) == ("length", "length")
    assert engine.scheduler.kv.num_used == 0
    assert not engine.rank.num_used_slots
    engine.check_memory()


def test_what_was_computed_before_is_not_computed_again() -> None:
    engine = Engine()
    engine.rank.num_pending[LATE] = 10
    engine.scheduler.receive(request("late", PROMPT, max_tokens=2, seed=LATE))
    engine.run()
    assert engine.rank.num_tokens_computed == len(PROMPT) + 10 + 1, "the prompt's last token, each time"


def test_a_deferred_sequence_can_be_resumed_from_its_output() -> None:
    engine = Engine(depth=2)
    whole = generate(engine, PROMPT, max_tokens=9, seed=LATE)
    engine.rank.num_pending[LATE] = 2
    engine.scheduler.receive(request("late", PROMPT, max_tokens=9, seed=LATE, output=whole[:4], attempt=1))
    engine.run()
    assert engine.output("late", 1) == whole[4:]


@pytest.mark.parametrize(("failed", "finish"), [("grammar", "grammar_error"), ("no_token", "no_token_allowed")])
def test_what_cannot_be_sampled_is_an_error_of_its_own(failed: str, finish: str) -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", PROMPT))
    engine.plan()
    plan = engine.in_flight.popleft()
    failure = SlotFailure(slot=plan.steps[0].slot, media_lost=False, message="why", **{failed: True})  # type: ignore[arg-type]
    engine.scheduler.apply(plan, StepResult(step_id=plan.step_id, tokens=(), failures=(failure,)))
    engine.take_replies()
    assert engine.finish("a") == finish
    assert engine.replies["a", 0][-1].message == "why"
