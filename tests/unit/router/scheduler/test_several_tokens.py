"""The scheduler when one result brings several tokens of a sequence, as speculative decoding does."""

from __future__ import annotations

import pytest

from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import StepResult
from tests.fakes.ranks.rank import generate_alone
from tests.unit.router.builders import Engine, request

PROMPT = list(range(100, 140))


def answer(engine: Engine, **sampling: object) -> list[int]:
    """What the sequence generates one token at a time."""
    return generate_alone(PROMPT, SamplingParams(**sampling), engine.context_tokens)[0]


@pytest.mark.parametrize("max_new_tokens", [1, 2, 3, 7, 100])
def test_the_answer_does_not_depend_on_how_many_tokens_a_result_brings(max_new_tokens: int) -> None:
    engine = Engine(max_new_tokens=max_new_tokens)
    engine.scheduler.receive(request("a", PROMPT, max_tokens=50))
    num_steps = engine.run()
    assert (engine.finish("a"), engine.output("a")) == ("length", answer(engine, max_tokens=50))
    assert (num_steps < 50) == (max_new_tokens > 1)
    engine.check_memory()


def test_tokens_of_one_result_are_one_reply() -> None:
    engine = Engine(max_new_tokens=4)
    engine.scheduler.receive(request("a", PROMPT, max_tokens=6, logprobs=1))
    engine.run()
    assert [len(reply.token_ids) for reply in engine.replies["a", 0]] == [4, 2]
    assert [len(reply.logprobs) for reply in engine.replies["a", 0]] == [4, 2]


def test_tokens_after_a_stop_token_are_dropped() -> None:
    engine = Engine(max_new_tokens=8)
    whole = answer(engine, max_tokens=60)
    index = next(index for index in range(2, 6) if whole[index] not in whole[:index])
    engine.scheduler.receive(request("a", PROMPT, max_tokens=60, stop_ids=(whole[index],), logprobs=0))
    engine.run_step()
    assert (engine.finish("a"), engine.output("a")) == ("stop", whole[: index + 1])
    assert len(engine.logprobs("a")) == index + 1
    engine.run()
    assert engine.scheduler.kv.num_used == 0
    engine.check_memory()


def test_a_stop_token_before_min_tokens_does_not_end_the_sequence() -> None:
    """The rank would not sample it; the scheduler counts within the result, not up to its end."""
    engine = Engine()
    engine.scheduler.receive(request("a", PROMPT, min_tokens=3, stop_ids=(5,)))
    plan = engine.scheduler.schedule()
    assert plan is not None
    engine.scheduler.apply(plan, StepResult(step_id=plan.step_id, tokens=((0, (5, 5, 5, 7)),)))
    engine.take_replies()
    assert (engine.finish("a"), engine.output("a")) == ("stop", [5, 5, 5])


@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_tokens_beyond_max_tokens_are_dropped(max_tokens: int) -> None:
    engine = Engine(max_new_tokens=8)
    engine.scheduler.receive(request("a", PROMPT, max_tokens=max_tokens))
    engine.run_step()
    assert (engine.finish("a"), engine.output("a")) == ("length", answer(engine, max_tokens=max_tokens))


def test_blocks_that_fill_up_within_a_result_are_cached() -> None:
    engine = Engine(max_new_tokens=8)
    engine.scheduler.receive(request("a", PROMPT, max_tokens=30))
    engine.run()
    follower = [*PROMPT, *engine.output("a"), 7]
    engine.scheduler.receive(request("b", follower))
    engine.run()
    assert engine.replies["b", 0][0].num_cached_tokens // 16 == (40 + 29) // 16
    engine.check_memory()
