"""The scheduler with drafts: tokens that a step computes and that the rank verifies."""

from __future__ import annotations

import msgspec

from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import Proposal, StepPlan, StepResult
from mmserve.router.scheduler.scheduler import Scheduler, SchedulerConfig
from tests.fakes.ranks.rank import generate_alone
from tests.unit.router.builders import Engine, request

PROMPT = [*range(100, 140), 100, 101]


def planned(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.schedule()
    assert plan is not None
    return plan


def scheduler_of(*, ngrams: bool = True, **options: int) -> Scheduler:
    """With the drafter of a server, which finds ``102, 103, ...`` after PROMPT and 102; without ``ngrams`` with a draft
    model."""
    limits = {"num_blocks": 64, "max_num_seqs": 8, "max_num_batched_tokens": 64} | options
    config = SchedulerConfig(
        limits["max_num_seqs"],
        limits["max_num_batched_tokens"],
        1024,
        ngram_drafts=ngrams,
        draft_context=0 if ngrams else 1024,
    )
    return Scheduler(
        config, num_blocks=limits["num_blocks"], block_tokens=16, now=lambda: 0.0, record=lambda name, value: None
    )


def started(scheduler: Scheduler, token_id: int = 102, **sampling: object) -> None:
    """Slot 0 has PROMPT and its first token."""
    scheduler.receive(request("a", PROMPT, **({"max_tokens": 60} | sampling)))  # type: ignore[arg-type]
    plan = planned(scheduler)
    scheduler.apply(plan, StepResult(step_id=plan.step_id, tokens=((0, (token_id,)),)))
    scheduler._planner._drafter.observe_step(1, 0, 0.01)  # type: ignore[union-attr]


def test_the_answer_does_not_depend_on_drafts() -> None:
    engine = Engine(drafts=True)
    for seed in range(3):
        engine.scheduler.receive(request(str(seed), PROMPT, max_tokens=90, seed=seed, logprobs=2))
    num_steps = engine.run()
    for seed in range(3):
        sampling = SamplingParams(max_tokens=90, seed=seed, logprobs=2)
        tokens, logprobs, _ = generate_alone(PROMPT, sampling, engine.context_tokens)
        assert (engine.finish(str(seed)), engine.output(str(seed))) == ("length", tokens)
        assert engine.logprobs(str(seed)) == logprobs
    assert num_steps < 70
    assert 0 < sum(engine.metrics["accepted_draft_tokens"]) < sum(engine.metrics["draft_tokens"])
    engine.check_memory()


def test_what_followed_the_last_tokens_is_computed_with_them() -> None:
    scheduler = scheduler_of()
    started(scheduler)
    step = planned(scheduler).steps[0]
    assert (step.start, step.num_tokens, step.sample, step.token_ids) == (42, 1, True, ())
    assert step.draft == (103, 104, 105, 106)


def test_a_sequence_is_not_planned_before_its_draft_is_verified() -> None:
    scheduler = scheduler_of()
    started(scheduler)
    plan = planned(scheduler)
    assert scheduler.schedule() is None
    scheduler.apply(plan, StepResult(step_id=plan.step_id, tokens=((0, (103, 104, 7)),)))
    following = planned(scheduler).steps[0]
    assert (following.start, following.num_tokens, following.draft) == (45, 1, ())


def test_a_draft_leaves_room_for_the_token_after_it() -> None:
    scheduler = scheduler_of()
    started(scheduler, max_tokens=4)
    assert planned(scheduler).steps[0].draft == (103, 104)


def test_a_draft_ends_before_a_stop_token() -> None:
    scheduler = scheduler_of()
    started(scheduler, stop_ids=(104,))
    assert planned(scheduler).steps[0].draft == (103,)


def test_drafts_take_no_rows_beyond_a_step() -> None:
    scheduler = scheduler_of(max_num_batched_tokens=16, max_num_seqs=14, num_blocks=128)
    for number in range(14):
        scheduler.receive(request(str(number), [*range(100 * number + 100, 100 * number + 106)] * 2, max_tokens=60))
    num_drafted = 0
    for _ in range(60):
        plan = planned(scheduler)
        assert sum(step.num_tokens + len(step.draft) for step in plan.steps) <= 16
        num_drafted += sum(len(step.draft) for step in plan.steps)
        tokens = tuple(
            (step.slot, ((step.start + step.num_tokens) % 6 + 100 * step.slot + 100,))
            for step in plan.steps
            if step.sample
        )
        scheduler.apply(plan, StepResult(step_id=plan.step_id, tokens=tokens, forward_s=0.01))
    assert num_drafted


def test_drafts_take_no_blocks_beyond_the_cache() -> None:
    scheduler = scheduler_of(num_blocks=3)
    started(scheduler)
    plan = planned(scheduler)
    assert len(plan.steps[0].draft) == 4, "positions 43 to 46 are in its last block"
    scheduler.apply(plan, StepResult(step_id=plan.step_id, tokens=((0, (103, 104, 105)),), forward_s=0.01))
    assert planned(scheduler).steps[0].draft == (106,), "position 47 is for the last token"


def test_blocks_are_cached_once_their_tokens_are_verified() -> None:
    scheduler = scheduler_of()
    started(scheduler)
    plan = planned(scheduler)
    num_cached = len(scheduler._running.sequences[0].block_table.nodes)  # type: ignore[union-attr]
    assert num_cached == 2, "the third block ends with the fifth token of the answer"
    scheduler.apply(plan, StepResult(step_id=plan.step_id, tokens=((0, (103, 104, 105, 106, 107)),)))
    assert len(scheduler._running.sequences[0].block_table.nodes) == 2  # type: ignore[union-attr]
    plan = planned(scheduler)
    scheduler.apply(plan, StepResult(step_id=plan.step_id, tokens=((0, (108, 109)),)))
    nodes = scheduler._running.sequences[0].block_table.nodes  # type: ignore[union-attr]
    assert len(nodes) == 3


def test_nothing_is_drafted_beside_a_prompt() -> None:
    scheduler = scheduler_of()
    started(scheduler)
    scheduler.receive(request("b", [5] * 200, max_tokens=9))
    assert [step.draft for step in planned(scheduler).steps] == [(), ()]


def test_nothing_is_drafted_by_default() -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", [1] * 40, max_tokens=60))
    while plan := engine.run_step():
        assert not any(step.draft for step in plan.steps)
    assert not engine.metrics["draft_tokens"]


def test_a_draft_model_is_asked_for_tokens_that_have_room() -> None:
    scheduler = scheduler_of(ngrams=False, num_blocks=3)
    started(scheduler)
    plan = planned(scheduler)
    step = plan.steps[0]
    assert (step.draft, step.num_proposed, step.new_blocks) == ((), 4, ())
    assert scheduler.schedule() is None, "how many tokens the step brings is not known"
    result = StepResult(
        step_id=plan.step_id, tokens=((0, (7, 8, 9)),), proposals=(Proposal(0, 2, 0),), num_draft_rows=43
    )
    scheduler.apply(plan, msgspec.structs.replace(result, forward_s=0.02, draft_s=0.01))
    following = planned(scheduler).steps[0]
    assert (following.start, following.num_proposed) == (45, 1), "position 47, the last one, is for the next token"


def test_a_draft_model_that_proposes_nothing_yet_is_asked_again() -> None:
    recorded: dict[str, float] = {}
    scheduler = scheduler_of(ngrams=False)
    scheduler._planner._record = recorded.__setitem__
    started(scheduler)
    for token_id in range(3):
        plan = planned(scheduler)
        assert plan.steps[0].num_proposed == 4
        proposals = (Proposal(0, 0, 9),)
        result = StepResult(step_id=plan.step_id, tokens=((0, (token_id,)),), proposals=proposals, num_draft_rows=256)
        scheduler.apply(plan, msgspec.structs.replace(result, forward_s=0.01))
    assert (recorded["draft_tokens"], recorded["accepted_draft_tokens"]) == (0, 0)
