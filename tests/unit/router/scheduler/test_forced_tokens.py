"""The scheduler when a result names tokens that must follow the sampled one, and that are not computed yet."""

from __future__ import annotations

import pytest

from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import StepPlan, StepResult
from tests.fakes.ranks.rank import generate_alone
from tests.unit.router.builders import Engine, request

PROMPT = list(range(100, 140))


def answer(engine: Engine, **sampling: object) -> list[int]:
    """What the sequence generates one token at a time."""
    return generate_alone(PROMPT, SamplingParams(**sampling), engine.context_tokens)[0]


def apply(engine: Engine, plan: StepPlan, tokens: tuple[int, ...], forced: tuple[int, ...] = ()) -> None:
    """A result for slot 0, as a rank would send it."""
    result = StepResult(step_id=plan.step_id, tokens=((0, tokens),), forced=((0, forced),) if forced else ())
    engine.scheduler.apply(plan, result)
    engine.take_replies()


def planned(engine: Engine) -> StepPlan:
    plan = engine.scheduler.schedule()
    assert plan is not None
    return plan


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("max_forced_tokens", [3, 30])
def test_the_answer_does_not_depend_on_how_many_tokens_are_forced(max_forced_tokens: int, depth: int) -> None:
    engine = Engine(max_forced_tokens=max_forced_tokens, depth=depth)
    engine.scheduler.receive(request("a", PROMPT, max_tokens=90))
    num_steps = engine.run()
    assert (engine.finish("a"), engine.output("a")) == ("length", answer(engine, max_tokens=90))
    assert num_steps < 80
    engine.check_memory()


def test_forced_tokens_are_computed_in_one_chunk_with_the_token_before_them() -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", PROMPT, max_tokens=60))
    apply(engine, planned(engine), (7,), (8, 9, 10))
    assert engine.output("a") == [7, 8, 9, 10], "the client has them at once"
    assert engine.metrics["forced_tokens"] == [3]
    step = planned(engine).steps[0]
    assert (step.start, step.num_tokens, step.token_ids, step.sample) == (40, 4, (8, 9, 10), True)


def test_the_plan_in_flight_counts_as_the_first_part_of_the_chunk() -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", PROMPT, max_tokens=60))
    prompt, decode = planned(engine), planned(engine)
    apply(engine, prompt, (7,), (8, 9, 10))
    chunk = planned(engine)
    assert (chunk.steps[0].start, chunk.steps[0].num_tokens, chunk.steps[0].token_ids) == (41, 3, (9, 10))
    apply(engine, decode, (8,))
    assert engine.output("a") == [7, 8, 9, 10], "its token was known"
    following = planned(engine).steps[0]
    assert (following.start, following.num_tokens, following.token_ids) == (44, 1, ())
    apply(engine, chunk, (11,))
    assert engine.output("a") == [7, 8, 9, 10, 11]


def test_a_chunk_that_does_not_fit_the_step_goes_on_in_the_next_ones() -> None:
    engine = Engine(max_num_batched_tokens=48)
    engine.scheduler.receive(request("a", PROMPT, max_tokens=200))
    engine.scheduler.receive(request("b", [*PROMPT[:5], 1], max_tokens=200))
    plan = planned(engine)
    tokens, forced = tuple((step.slot, (7,)) for step in plan.steps), tuple(range(60))
    engine.scheduler.apply(plan, StepResult(step_id=plan.step_id, tokens=tokens, forced=((0, forced),)))
    first, second = planned(engine).steps
    assert (first.num_tokens, first.token_ids, first.sample) == (47, forced[:46], False)
    assert (second.num_tokens, second.sample) == (1, True), "the other sequence has its token in every step"
    rest = planned(engine).steps[0]
    assert (rest.start, rest.num_tokens, rest.token_ids, rest.sample) == (40 + 47, 14, forced[46:], True)


def test_prompts_wait_behind_forced_tokens_but_the_oldest_progresses() -> None:
    engine = Engine(max_num_batched_tokens=48)
    engine.scheduler.receive(request("a", PROMPT, max_tokens=200))
    plan = planned(engine)
    engine.scheduler.receive(request("b", PROMPT[::-1], max_tokens=200))
    apply(engine, plan, (7,), tuple(range(60)))
    assert [(step.slot, step.num_tokens) for step in planned(engine).steps] == [(0, 48)]
    assert [(step.slot, step.num_tokens) for step in planned(engine).steps] == [(0, 13), (1, 35)]


@pytest.mark.parametrize(
    ("sampling", "output", "finish"),
    [
        ({"max_tokens": 3}, [7, 8, 9], "length"),
        ({"max_tokens": 1}, [7], "length"),
        ({"stop_ids": (9,)}, [7, 8, 9], "stop"),
        ({"stop_ids": (8,), "min_tokens": 4, "max_tokens": 9}, [7, 8, 9, 8], "stop"),
    ],
)
@pytest.mark.parametrize("depth", [1, 2])
def test_forced_tokens_end_the_sequence_as_sampled_ones_do(
    depth: int, sampling: dict[str, object], output: list[int], finish: str
) -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", PROMPT, **sampling))  # type: ignore[arg-type]
    plans = [plan for _ in range(depth) if (plan := engine.scheduler.schedule()) is not None]
    apply(engine, plans[0], (7,), (8, 9, 8, 11))
    assert (engine.finish("a"), engine.output("a")) == (finish, output)
    assert sum(engine.metrics["forced_tokens"]) == len(output) - 1
    for plan in plans[1:]:
        apply(engine, plan, (8,))
    assert engine.output("a") == output
    assert engine.scheduler.kv.num_used == 0


def test_blocks_of_forced_tokens_are_cached_when_a_plan_computes_them() -> None:
    engine = Engine(max_num_batched_tokens=256)
    engine.scheduler.receive(request("a", PROMPT, max_tokens=100))
    forced = tuple(range(8, 60))
    apply(engine, planned(engine), (7,), forced)
    follower = request("b", [*PROMPT, 7, *forced, 1])
    sequence = engine.scheduler._running.sequences[0]
    assert engine.scheduler.kv.match_prefix(sequence.tokens).num_tokens == 32
    engine.scheduler.receive(follower)
    first, second = planned(engine).steps
    assert (first.start, first.num_tokens) == (40, 53)
    assert second.start == (40 + 53) // 16 * 16, "the blocks that are filled in this step"


def test_a_preempted_sequence_brings_its_forced_tokens_along() -> None:
    engine = Engine(num_blocks=6, expects_short=True, max_forced_tokens=20)
    for name in "ab":
        engine.scheduler.receive(request(name, [ord(name), *PROMPT[:20]], max_tokens=50, stop_ids=(99,)))
    engine.run()
    assert engine.metrics["num_preemptions"]
    for name in "ab":
        expected = generate_alone([ord(name), *PROMPT[:20]], SamplingParams(max_tokens=50), engine.context_tokens)[0]
        assert engine.output(name) == expected
    engine.check_memory()
