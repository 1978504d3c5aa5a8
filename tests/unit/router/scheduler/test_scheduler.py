"""The scheduler with a fake rank that computes each token from the contents of its KV blocks."""

from __future__ import annotations

import msgspec
import pytest
from msgspec import structs

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.messages.request import GenerateRequest, WorkerDied
from mmserve.messages.sampling import SamplingParams
from mmserve.messages.step import StepResult
from tests.fakes.ranks.rank import generate_alone
from tests.unit.router.builders import Engine, abort, request, span

PROMPT = list(range(100, 140))


def generate(engine: Engine, prompt: list[int], **sampling: object) -> list[int]:
    """The tokens of the sequence computed by itself."""
    return generate_alone(prompt, SamplingParams(**sampling), engine.context_tokens)[0]


def test_a_request_is_answered_token_by_token() -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", PROMPT, max_tokens=5))
    engine.run()
    assert engine.output("a") == generate(engine, PROMPT, max_tokens=5)
    assert [len(reply.token_ids) for reply in engine.replies["a", 0]] == [1] * 5
    assert engine.finish("a") == "length"
    assert engine.scheduler.kv.num_used == 0


def test_the_last_reply_has_the_time_of_each_stage() -> None:
    engine = Engine(token_s=0.001)
    engine.scheduler.receive(request("a", PROMPT, max_tokens=5))
    engine.run()
    *others, last = engine.replies["a", 0]
    assert [reply.stage_times for reply in others] == [{}] * 4
    assert list(last.stage_times) == ["queue", "prefill", "decode"]
    assert last.stage_times["prefill"] > 0
    assert last.stage_times["decode"] > 0


def test_a_prompt_is_looked_up_in_the_prefix_cache_and_not_computed() -> None:
    engine = Engine()

    def cached(id: str, prompt: list[int], salt: str = "") -> int:
        engine.scheduler.receive(structs.replace(request(id, prompt, cache_salt=salt), look_up=True))
        assert engine.scheduler.idle
        ((_, reply),) = engine.scheduler.take_replies()
        assert (reply.id, reply.finish, reply.token_ids) == (id, "length", ())
        return reply.num_cached_tokens

    assert cached("before", PROMPT) == 0
    engine.scheduler.receive(request("a", PROMPT, max_tokens=5))
    engine.run()
    assert cached("all", PROMPT) == len(PROMPT) - 1, "the last token is always computed"
    assert cached("some", [*PROMPT[:20], 7, 7]) == 20
    assert cached("salted", PROMPT, "salt") == 0
    engine.scheduler.receive(request("b", PROMPT, max_tokens=1))
    engine.run()
    assert engine.replies["b", 0][0].num_cached_tokens == len(PROMPT) - 1


def test_a_malformed_prompt_is_not_looked_up() -> None:
    engine = Engine()
    engine.scheduler.receive(structs.replace(request("a", PROMPT), look_up=True, prompt_ids=b"abc"))
    ((_, reply),) = engine.scheduler.take_replies()
    assert (reply.finish, "malformed" in reply.message) == ("error", True)


def test_plans_are_numbered_in_the_order_they_are_made() -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", PROMPT, max_tokens=5))
    plans = [engine.run_step() for _ in range(4)]
    first = plans[0].step_id
    assert [plan.step_id for plan in plans] == [first, first + 1, first + 2, first + 3]


def test_a_long_prompt_is_computed_in_chunks_beside_decoding_sequences() -> None:
    engine = Engine(max_num_batched_tokens=32)
    engine.scheduler.receive(request("short", PROMPT[:5], max_tokens=20))
    engine.run_step()
    engine.scheduler.receive(request("long", list(range(200, 300)), max_tokens=2))
    plan = engine.run_step()
    assert plan is not None
    assert [step.num_tokens for step in plan.steps] == [1, 31]
    assert [step.sample for step in plan.steps] == [True, False]
    engine.run()
    assert engine.output("short") == generate(engine, PROMPT[:5], max_tokens=20)
    assert engine.output("long") == generate(engine, list(range(200, 300)), max_tokens=2)


def test_a_long_prompt_keeps_steps_within_max_step_s_while_others_decode() -> None:
    engine = Engine(max_num_batched_tokens=512, max_step_s=0.04, token_s=0.001)
    engine.scheduler.receive(request("short", PROMPT, max_tokens=30))
    engine.run_step()
    engine.scheduler.receive(request("long", list(range(200, 500)), max_tokens=2))
    while engine.output("long") == []:
        plan = engine.run_step()
        assert plan is not None
        assert sum(step.num_tokens for step in plan.steps) <= 41
    engine.run()
    assert engine.output("short") == generate(engine, PROMPT, max_tokens=30)
    assert engine.output("long") == generate(engine, list(range(200, 500)), max_tokens=2)


@pytest.mark.parametrize(("max_step_s", "lengths"), [(0.1, [200, 100]), (0.04, [160, 140]), (0.03, [120, 120, 60])])
def test_a_long_prompt_alone_gets_steps_of_twice_max_step_s_and_longer_ones_for_few_tokens(
    max_step_s: float, lengths: list[int]
) -> None:
    engine = Engine(max_num_batched_tokens=512, max_step_s=max_step_s, token_s=0.001)
    engine.scheduler.receive(request("first", PROMPT, max_tokens=1))
    engine.run()
    engine.scheduler.receive(request("long", list(range(200, 500)), max_tokens=1))
    plans = [engine.run_step() for _ in lengths]
    assert [[step.num_tokens for step in plan.steps] for plan in plans if plan] == [[length] for length in lengths]


@pytest.mark.parametrize(("max_step_s", "started"), [(1.0, [1, 1, 2]), (0.0, [4])])
def test_prompts_that_arrive_together_start_one_after_another_unless_they_are_short(
    max_step_s: float, started: list[int]
) -> None:
    """Together, each would wait for the last one's prompt. Without a limit to steps they start together."""
    engine = Engine(max_num_batched_tokens=512, max_step_s=max_step_s, token_s=0.001)
    engine.scheduler.receive(request("first", PROMPT, max_tokens=2))
    engine.run()
    for name, first, length in (("b", 200, 20), ("c", 300, 20), ("d", 400, 3), ("e", 500, 3)):
        engine.scheduler.receive(request(name, list(range(first, first + length)), max_tokens=3))
    plans = [engine.run_step() for _ in started]
    assert [len(plan.new) for plan in plans if plan] == started
    engine.run()
    assert engine.output("e") == generate(engine, list(range(500, 503)), max_tokens=3)


def test_a_step_starts_a_quarter_of_those_that_wait() -> None:
    engine = Engine(max_num_seqs=16, max_num_batched_tokens=512, max_step_s=1.0, token_s=0.001)
    engine.scheduler.receive(request("first", PROMPT, max_tokens=2))
    engine.run()
    for number in range(12):
        engine.scheduler.receive(request(f"r{number}", list(range(30 * number, 30 * number + 20)), max_tokens=9))
    plans = [engine.run_step() for _ in range(3)]
    assert [len(plan.new) for plan in plans if plan] == [3, 3, 2]


def _image_request(name: str, *, max_tokens: int = 8) -> GenerateRequest:
    """A request with one image of 200 tokens, different for each name."""
    first = FIRST_VIRTUAL_TOKEN + 1000 * len(name)
    return request(
        name, [*(first + index for index in range(200)), 9], max_tokens=max_tokens, spans=(span(0, 200, len(name)),)
    )


def test_text_starts_beside_an_image_prompt_of_several_steps() -> None:
    engine = Engine()
    engine.scheduler.receive(_image_request("image"))
    engine.run_step()
    engine.scheduler.receive(request("text", PROMPT[:20], max_tokens=4))
    engine.scheduler.receive(request("long", PROMPT, max_tokens=4))
    plan = engine.run_step()
    assert plan is not None
    assert {step.slot: step.num_tokens for step in plan.steps} == {0: 43, 1: 20, 2: 1}
    assert len(engine.output("text")) == 1
    engine.run()
    assert engine.output("text") == generate(engine, PROMPT[:20], max_tokens=4)
    assert engine.finish("image") == "length"


def test_an_image_prompt_gets_two_thirds_of_the_step_beside_decoding_text() -> None:
    engine = Engine()
    engine.scheduler.receive(request("text", PROMPT[:5], max_tokens=20))
    engine.run_step()
    engine.scheduler.receive(_image_request("a"))
    plan = engine.run_step()
    assert plan is not None
    assert [step.num_tokens for step in plan.steps] == [1, 42]
    engine.run()
    assert engine.output("text") == generate(engine, PROMPT[:5], max_tokens=20)


def test_an_image_prompt_gets_the_whole_step_beside_other_images() -> None:
    engine = Engine()
    engine.scheduler.receive(_image_request("a"))
    while engine.output("a") == []:
        engine.run_step()
    engine.scheduler.receive(_image_request("bb"))
    plan = engine.run_step()
    assert plan is not None
    assert [step.num_tokens for step in plan.steps] == [1, 63]


def test_a_long_text_prompt_progresses_behind_an_older_image_prompt() -> None:
    engine = Engine()
    engine.scheduler.receive(_image_request("a"))
    engine.run_step()
    engine.scheduler.receive(request("text", list(range(200, 300)), max_tokens=1))
    plans = [engine.run_step() for _ in range(2)]
    assert [[step.num_tokens for step in plan.steps] for plan in plans if plan] == [[43, 21], [43, 21]]


def test_resumed_text_starts_beside_an_image_prompt_of_several_steps() -> None:
    engine = Engine()
    engine.scheduler.receive(_image_request("image"))
    engine.run_step()
    engine.scheduler.receive(request("text", PROMPT[:20], max_tokens=4, attempt=1, output=[7]))
    plan = engine.run_step()
    assert plan is not None
    assert [step.num_tokens for step in plan.steps] == [43, 21]


def test_a_cached_prefix_is_not_computed_again() -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", PROMPT, max_tokens=1))
    engine.run()
    computed = engine.rank.num_tokens_computed
    engine.scheduler.receive(request("b", [*PROMPT[:32], 7], max_tokens=1))
    engine.run()
    assert engine.rank.num_tokens_computed - computed == 1
    assert engine.replies["b", 0][0].num_cached_tokens == 32
    assert engine.replies["a", 0][0].num_cached_tokens == 0
    assert engine.metrics["prefix_cache_hits"] == [0, 32]
    assert engine.metrics["prefix_cache_queries"] == [40, 33]


def test_the_next_turn_of_a_conversation_computes_only_its_new_tokens() -> None:
    engine = Engine()
    engine.scheduler.receive(request("first", PROMPT[:21], max_tokens=6))
    engine.run()
    computed = engine.rank.num_tokens_computed
    prompt = [*PROMPT[:21], *engine.output("first"), 7, 8, 9]
    engine.scheduler.receive(request("second", prompt, max_tokens=6))
    engine.run()
    assert engine.replies["second", 0][0].num_cached_tokens == 26, "the last output token has no K and V"
    assert engine.rank.num_tokens_computed - computed == 4 + 5
    assert engine.output("second") == generate(engine, prompt, max_tokens=6)
    engine.check_memory()


@pytest.mark.parametrize("depth", [1, 2])
def test_blocks_of_a_step_that_fails_after_an_abort_are_not_cached(depth: int) -> None:
    engine = Engine(depth=depth)
    engine.rank.broken_seeds.add(13)
    engine.scheduler.receive(request("bad", PROMPT[:10], seed=13))
    engine.run_step(meanwhile=lambda: engine.scheduler.receive(abort("bad")))
    engine.run()
    assert engine.scheduler.kv.num_available == engine.scheduler.kv.num_free


def test_a_fully_cached_prompt_still_computes_one_token() -> None:
    engine = Engine()
    for name in ("a", "b"):
        engine.scheduler.receive(request(name, PROMPT[:32], max_tokens=3))
        engine.run()
    assert engine.replies["b", 0][0].num_cached_tokens == 31
    assert engine.output("b") == engine.output("a")


def test_equal_prompts_share_the_prefix_that_one_computes_in_the_same_step() -> None:
    engine = Engine(max_num_batched_tokens=1024, num_blocks=256)
    prompt = list(range(100, 500))
    for seed in range(4):
        engine.scheduler.receive(request(f"n{seed}", prompt, seed=seed, max_tokens=4))
    engine.scheduler.receive(request("other", PROMPT[::-1], max_tokens=4))
    plan = engine.run_step()
    assert plan is not None
    assert [step.num_tokens for step in plan.steps] == [400, 16, 16, 16, 40]
    engine.run()
    assert engine.rank.num_tokens_computed == 400 + 3 * 16 + 40 + 5 * 3
    for seed in range(4):
        assert engine.output(f"n{seed}") == generate(engine, prompt, seed=seed, max_tokens=4)
        assert engine.replies[f"n{seed}", 0][0].num_cached_tokens == (384 if seed else 0)


def test_a_prefix_of_several_chunks_is_shared_once_its_last_chunk_is_planned() -> None:
    engine = Engine(max_num_batched_tokens=64)
    prefix = list(range(100, 196))
    for name in range(3):
        engine.scheduler.receive(request(str(name), [*prefix, name], max_tokens=4))
    plans = [engine.run_step() for _ in range(2)]
    assert [[step.num_tokens for step in plan.steps] for plan in plans if plan] == [[64], [33, 1, 1]]
    engine.run()
    for name in range(3):
        assert engine.output(str(name)) == generate(engine, [*prefix, name], max_tokens=4)


def test_a_block_filled_by_a_decoding_sequence_is_shared_in_the_same_step() -> None:
    engine = Engine()
    engine.scheduler.receive(request("writer", PROMPT[:30], max_tokens=8))
    engine.run_step()
    engine.run_step()
    follower = [*PROMPT[:30], *engine.output("writer"), 7]
    engine.scheduler.receive(request("follower", follower, max_tokens=4))
    plan = engine.run_step()
    assert plan is not None
    assert [step.num_tokens for step in plan.steps] == [1, 1]
    engine.run()
    assert engine.output("follower") == generate(engine, follower, max_tokens=4)


def test_sequences_that_used_blocks_of_a_failed_one_start_again() -> None:
    engine = Engine(max_num_batched_tokens=512)
    engine.rank.broken_seeds.add(13)
    prompts = {"first": PROMPT, "second": [*PROMPT, *range(200, 230)], "third": [*PROMPT, *range(200, 220), 9]}
    for name, prompt in prompts.items():
        engine.scheduler.receive(request(name, prompt, seed=13 if name == "first" else 1))
    engine.scheduler.receive(request("other", PROMPT[::-1]))
    engine.run_step()
    engine.check_memory()
    assert [engine.finish(name) for name in ("first", "second", "third")] == ["error", None, None]
    assert [engine.output(name) for name in ("second", "third")] == [[], []]
    assert len(engine.output("other")) == 1
    plan = engine.run_step()
    assert plan is not None
    assert [step.num_tokens for step in plan.steps] == [1, 70, 13], "in order of arrival"
    engine.run()
    for name in ("second", "third"):
        assert engine.output(name) == generate(engine, prompts[name], seed=1, max_tokens=8)
        assert engine.finish(name) == "length"
    assert not engine.metrics["num_preemptions"]
    engine.check_memory()


def test_an_image_before_a_lost_one_is_computed_by_the_next_sequence() -> None:
    engine = Engine(max_num_batched_tokens=512)
    image, other = ([FIRST_VIRTUAL_TOKEN + first + index for index in range(32)] for first in (0, 32))
    lost, fine = [*image, *other, 9], [*image, 8, 7]
    engine.rank.lost_items.add(2)
    engine.scheduler.receive(request("lost", lost, spans=(span(0, 32, 1), span(32, 32, 2))))
    engine.scheduler.receive(request("fine", fine, spans=(span(0, 32, 1),)))
    plan = engine.run_step()
    assert plan is not None
    assert [step.num_tokens for step in plan.steps] == [65, 2]
    engine.run()
    assert engine.finish("lost") == "media_lost"
    assert engine.output("fine") == generate(engine, fine, max_tokens=8)
    engine.check_memory()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("aborted", ["leader", "follower"])
def test_an_abort_between_plan_and_result_leaves_no_wrong_blocks(aborted: str, fails: bool) -> None:
    engine = Engine(max_num_batched_tokens=512)
    engine.rank.broken_seeds.update([13] if fails else [])
    prompts = {"leader": PROMPT, "follower": [*PROMPT, *range(200, 230)], "last": [*PROMPT, *range(200, 220), 9]}
    for name, prompt in prompts.items():
        engine.scheduler.receive(request(name, prompt, seed=13 if name == "leader" else 1))
    plan = engine.scheduler.schedule()
    assert plan is not None
    engine.scheduler.receive(abort(aborted))
    engine.scheduler.apply(plan, engine.rank.step(plan))
    engine.take_replies()
    engine.check_memory()
    engine.run()
    assert engine.finish(aborted) == "abort"
    assert engine.output("last") == generate(engine, prompts["last"], seed=1, max_tokens=8)
    engine.check_memory()


def test_an_image_is_found_in_the_cache_by_its_virtual_ids() -> None:
    engine = Engine()
    image = list(range(FIRST_VIRTUAL_TOKEN, FIRST_VIRTUAL_TOKEN + 32))
    other = list(range(FIRST_VIRTUAL_TOKEN + 32, FIRST_VIRTUAL_TOKEN + 64))
    for name, tokens in (("a", image), ("b", image), ("c", other)):
        engine.scheduler.receive(request(name, [*tokens, 9], spans=(span(0, 32, 1),)))
        engine.run()
    assert [engine.replies[name, 0][0].num_cached_tokens for name in "abc"] == [0, 32, 0]


@pytest.mark.parametrize("stop_ids", [(), tuple(range(40))])
def test_min_tokens_hold_a_stop_id_back(stop_ids: tuple[int, ...]) -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", PROMPT, max_tokens=6, stop_ids=stop_ids))
    engine.run()
    assert engine.finish("a") == ("stop" if stop_ids else "length")
    assert len(engine.output("a")) == (1 if stop_ids else 6)


def test_the_context_length_ends_a_sequence() -> None:
    engine = Engine(max_model_len=50)
    engine.scheduler.receive(request("a", PROMPT, max_tokens=1000))
    engine.run()
    assert engine.finish("a") == "length"
    assert len(engine.output("a")) == 10


def test_a_sequence_that_fills_the_cache_alone_ends_with_length() -> None:
    engine = Engine(num_blocks=4)
    engine.scheduler.receive(request("a", PROMPT, max_tokens=1000))
    engine.run()
    assert engine.finish("a") == "length"
    assert len(engine.output("a")) == 64 - 40
    engine.check_memory()


def test_a_prompt_that_can_never_fit_is_an_error() -> None:
    engine = Engine(num_blocks=2)
    engine.scheduler.receive(request("a", PROMPT))
    engine.scheduler.receive(request("empty", []))
    engine.take_replies()
    assert engine.finish("a") == "error"
    assert "40 tokens" in engine.replies["a", 0][0].message
    assert engine.finish("empty") == "error"
    assert engine.scheduler.idle


@pytest.mark.parametrize("depth", [1, 2])
def test_preempted_sequences_continue_with_the_same_tokens(depth: int) -> None:
    engine = Engine(depth=depth, num_blocks=8, max_num_seqs=4, expects_short=True)
    prompts = {name: list(range(start, start + 17)) for name, start in (("a", 100), ("b", 200), ("c", 300))}
    for name, prompt in prompts.items():
        engine.scheduler.receive(request(name, prompt, max_tokens=70, stop_ids=(99,)))
    engine.run()
    assert sum(engine.metrics["num_preemptions"]) > 0
    for name, prompt in prompts.items():
        assert engine.output(name) == generate(engine, prompt, max_tokens=70, stop_token_ids=(99,))
    engine.check_memory()


def test_sequences_of_known_output_length_are_never_preempted() -> None:
    engine = Engine(num_blocks=8, max_num_seqs=8)
    for name in range(8):
        engine.scheduler.receive(request(str(name), [name, *range(100, 120)], max_tokens=30))
    engine.run()
    assert not engine.metrics["num_preemptions"]


def test_it_is_full_where_slots_or_blocks_are_missing_until_nothing_waits_for_them() -> None:
    for num_blocks, max_num_seqs in ((8, 8), (64, 2)):
        engine = Engine(num_blocks=num_blocks, max_num_seqs=max_num_seqs)
        for name in range(5):
            assert engine.scheduler.full_at == 0
            engine.scheduler.receive(request(str(name), [name, *range(100, 120)], max_tokens=30))
        for _ in range(3):
            engine.run_step()
        assert engine.scheduler.num_waiting
        assert 0 < engine.scheduler.full_at == engine.scheduler.num_running <= max_num_seqs
        engine.run()
        assert engine.scheduler.full_at == 0


def test_an_abort_ends_running_and_waiting_sequences_between_steps() -> None:
    engine = Engine(max_num_seqs=1)
    engine.scheduler.receive(request("running", PROMPT, max_tokens=500))
    engine.scheduler.receive(request("waiting", PROMPT))
    engine.run_step()
    for name in ("running", "waiting", "running", "unknown"):
        engine.scheduler.receive(abort(name))
    plan = engine.run_step()
    assert plan is not None
    assert plan.free == (0,)
    assert not plan.steps
    assert engine.run_step() is None
    assert [engine.finish(name) for name in ("running", "waiting", "unknown")] == ["abort"] * 3
    assert engine.scheduler.kv.num_used == 0
    engine.check_memory()


def test_an_abort_between_plan_and_result_is_safe() -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", PROMPT, max_tokens=1))
    plan = engine.scheduler.schedule()
    assert plan is not None
    engine.scheduler.receive(abort("a"))
    engine.scheduler.apply(plan, engine.rank.step(plan))
    engine.run()
    assert engine.finish("a") == "abort"
    assert engine.output("a") == []
    engine.check_memory()


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("client", "abort"),
        ("media_error", "media_error"),
        ("media_lost", "media_lost"),
        ("internal_error", "error"),
        ("queue_full", "overloaded"),
        ("queue_timeout", "abort"),
    ],
)
def test_an_abort_of_an_unknown_id_is_answered_with_its_reason(reason: str, finish: str) -> None:
    engine = Engine()
    engine.scheduler.receive(abort("a", reason=reason, message="because", retry_after_s=7.5))
    engine.scheduler.receive(abort("a", reason=reason, message="because", retry_after_s=7.5))
    engine.scheduler.receive(request("a", PROMPT))
    engine.take_replies()
    (reply,) = engine.replies["a", 0]
    assert (reply.finish, reply.message, reply.retry_after_s) == (finish, "because", 7.5)
    assert engine.scheduler.idle


def test_a_request_received_twice_runs_once() -> None:
    engine = Engine()
    for _ in range(2):
        engine.scheduler.receive(request("a", PROMPT))
    engine.run_step()
    engine.scheduler.receive(request("a", PROMPT))
    engine.run()
    engine.scheduler.receive(request("a", PROMPT))
    assert engine.scheduler.idle
    assert engine.finish("a") == "length"
    assert len(engine.output("a")) == 8


def test_a_newer_attempt_replaces_the_older_and_continues_its_output() -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", PROMPT, max_tokens=20))
    for _ in range(4):
        engine.run_step()
    first = engine.output("a")
    engine.scheduler.receive(request("a", PROMPT, max_tokens=20, output=first, attempt=1))
    engine.scheduler.receive(request("a", PROMPT, max_tokens=20))
    engine.scheduler.receive(abort("a", attempt=0))
    engine.run()
    assert engine.finish("a", 0) is None
    assert engine.finish("a", 1) == "length"
    assert first + engine.output("a", 1) == generate(engine, PROMPT, max_tokens=20)
    engine.check_memory()


def test_an_abort_of_a_newer_attempt_ends_the_older_silently() -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", PROMPT))
    engine.run_step()
    engine.scheduler.receive(abort("a", attempt=2))
    engine.run()
    assert engine.finish("a", 0) is None
    assert engine.finish("a", 2) == "abort"


@pytest.mark.parametrize(("output", "finish"), [([9, 9], "length"), ([3], "stop")])
def test_a_resent_request_that_is_complete_ends_at_once(output: list[int], finish: str) -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", PROMPT, max_tokens=2, output=output, stop_ids=(3,), attempt=1))
    engine.take_replies()
    assert engine.finish("a", 1) == finish
    assert engine.output("a", 1) == []


def test_a_lost_image_ends_only_its_own_sequence_and_is_not_cached() -> None:
    engine = Engine(max_num_batched_tokens=128)
    prompt = [*range(100, 132), *range(FIRST_VIRTUAL_TOKEN, FIRST_VIRTUAL_TOKEN + 32), 9]
    engine.rank.lost_items.add(1)
    engine.scheduler.receive(request("lost", prompt, spans=(span(32, 32, 1),)))
    engine.scheduler.receive(request("fine", PROMPT[::-1]))
    engine.run()
    engine.check_memory()
    assert engine.finish("lost") == "media_lost"
    assert engine.finish("fine") == "length"
    engine.rank.lost_items.clear()
    engine.scheduler.receive(request("lost", prompt, spans=(span(32, 32, 1),), attempt=1))
    engine.run()
    assert engine.replies["lost", 1][0].num_cached_tokens == 0
    assert engine.output("lost", 1) == generate(engine, prompt, max_tokens=8)


def test_a_numerical_error_ends_only_its_own_sequence() -> None:
    engine = Engine()
    engine.rank.broken_seeds.add(13)
    engine.scheduler.receive(request("bad", PROMPT, seed=13))
    engine.scheduler.receive(request("good", PROMPT, seed=1))
    engine.run()
    assert (engine.finish("bad"), engine.replies["bad", 0][0].message) == ("error", "not a number")
    assert engine.finish("good") == "length"
    engine.check_memory()


def test_earlier_blocks_of_a_failed_sequence_are_not_cached() -> None:
    engine = Engine(max_num_batched_tokens=16)
    engine.scheduler.receive(request("bad", PROMPT, seed=13))
    engine.run_step()
    engine.rank.broken_seeds.add(13)
    engine.run()
    engine.scheduler.receive(request("good", PROMPT, seed=1))
    engine.run()
    assert engine.replies["good", 0][0].num_cached_tokens == 0
    engine.check_memory()


def test_a_missing_token_ends_its_sequence_with_an_error() -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", PROMPT))
    plan = engine.scheduler.schedule()
    assert plan is not None
    engine.scheduler.apply(plan, StepResult(step_id=plan.step_id, tokens=()))
    engine.take_replies()
    assert engine.finish("a") == "error"


def test_chunks_become_smaller_when_the_ranks_run_out_of_memory() -> None:
    engine = Engine(max_num_batched_tokens=64)
    engine.scheduler.receive(request("a", list(range(100, 300)), max_tokens=2))
    plan = engine.scheduler.schedule()
    assert plan is not None
    engine.scheduler.apply(plan, msgspec.structs.replace(engine.rank.step(plan), out_of_memory=True))
    second = engine.run_step()
    assert second is not None
    assert [sum(step.num_tokens for step in each.steps) for each in (plan, second)] == [64, 32]
    engine.run()
    assert engine.output("a") == generate(engine, list(range(100, 300)), max_tokens=2)


def test_small_requests_bypass_a_large_one_a_bounded_number_of_times() -> None:
    engine = Engine(num_blocks=16, max_num_seqs=4)
    for name in range(2):
        engine.scheduler.receive(request(f"first{name}", [name, *range(100, 140)], max_tokens=20))
    engine.run_step()
    engine.scheduler.receive(request("big", list(range(300, 540)), max_tokens=10))
    finished_small = 0
    for index in range(2000):
        engine.scheduler.receive(request(f"small{index}", [index, *range(100, 110)], max_tokens=4))
        engine.run_step()
        if engine.finish("big"):
            break
        finished_small = sum(engine.finish(f"small{other}") is not None for other in range(index))
    assert engine.finish("big") == "length"
    assert finished_small > 0


def test_all_waiting_sequences_that_fit_start_in_one_step() -> None:
    engine = Engine(max_num_seqs=32, max_num_batched_tokens=512, num_blocks=256)
    for name in range(30):
        engine.scheduler.receive(request(str(name), [name, 9, 9], max_tokens=4, output=[7] if name % 2 else []))
    plan = engine.run_step()
    assert plan is not None
    assert [step.num_tokens for step in plan.steps].count(0) == 0
    assert len(plan.steps) == 30


def test_no_sequence_starves_with_more_slots_than_tokens_in_a_step() -> None:
    engine = Engine(max_num_seqs=64, max_num_batched_tokens=16, num_blocks=256)
    for name in range(40):
        engine.scheduler.receive(request(str(name), [name, *range(100, 120)], max_tokens=30))
    num_steps = engine.run()
    assert all(engine.finish(str(name)) == "length" for name in range(40))
    assert num_steps < 200


def test_stage_times_are_recorded_once_per_request() -> None:
    engine = Engine(max_num_batched_tokens=16)
    engine.scheduler.receive(request("a", list(range(100, 130)), max_tokens=3))
    engine.run()
    assert engine.metrics["request_queue_time_seconds"] == [0.0]
    assert engine.metrics["request_prefill_time_seconds"] == [2.0 - 0.0]
    assert engine.metrics["request_decode_time_seconds"] == [2.0]
    assert engine.metrics["request_inference_time_seconds"] == [4.0]


def test_the_cost_of_a_step_does_not_depend_on_how_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(max_num_seqs=8, num_blocks=16)
    for name in range(3000):
        engine.scheduler.receive(request(str(name), [name, *range(100, 140)], max_tokens=100))
    matched = []
    match = engine.scheduler.kv.match_prefix
    monkeypatch.setattr(engine.scheduler.kv, "match_prefix", lambda *args: matched.append(1) or match(*args))
    engine.run_step()
    assert len(matched) <= 16


@pytest.mark.parametrize("depth", [1, 2])
def test_a_prompt_is_found_in_the_cache_only_with_its_own_salt(depth: int) -> None:
    engine = Engine(depth=depth)
    found = {}
    for name, salt in (("none", ""), ("a", "a"), ("b", "b"), ("a again", "a"), ("none again", "")):
        engine.scheduler.receive(request(name, PROMPT, cache_salt=salt, max_tokens=4))
        engine.run()
        assert engine.output(name) == generate(engine, PROMPT, max_tokens=4)
        found[name] = engine.replies[name, 0][0].num_cached_tokens
        engine.check_memory()
    cached = len(PROMPT) - 1
    assert found == {"none": 0, "a": 0, "b": 0, "a again": cached, "none again": cached}


def test_equal_prompts_of_one_step_share_blocks_only_with_equal_salts() -> None:
    engine = Engine(max_num_batched_tokens=1024)
    salts = ["", "a", "b", "a"]
    for number, salt in enumerate(salts):
        engine.scheduler.receive(request(str(number), PROMPT, cache_salt=salt, max_tokens=1))
    engine.run()
    found = [engine.replies[str(number), 0][0].num_cached_tokens for number in range(len(salts))]
    assert found[:3] == [0, 0, 0]
    assert found[3] == len(PROMPT) // 16 * 16
    engine.check_memory()


@pytest.mark.parametrize("depth", [1, 2])
def test_the_requests_of_an_http_worker_that_died_end_and_others_never_notice(depth: int) -> None:
    engine = Engine(depth=depth)
    died = WorkerDied(worker=1, died_s=5.0)
    for number in range(6):
        engine.scheduler.receive(request(f"r{number}", [*PROMPT, number], max_tokens=6, reply_to=number % 2))
    engine.run_step(meanwhile=lambda: engine.scheduler.receive(died))
    engine.scheduler.receive(request("on its way", PROMPT, reply_to=1))
    engine.scheduler.receive(structs.replace(request("of the next", PROMPT, reply_to=1), arrival_s=5.0))
    engine.run()
    for number in (0, 2, 4):
        assert engine.output(f"r{number}") == generate(engine, [*PROMPT, number], max_tokens=6)
    assert engine.replies.keys() == {("r0", 0), ("r2", 0), ("r4", 0), ("of the next", 0)}
    assert engine.finish("of the next") == "length"
    engine.check_memory()
    assert engine.scheduler.kv.num_used == 0
