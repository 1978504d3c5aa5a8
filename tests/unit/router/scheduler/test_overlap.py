"""The scheduler with two plans in flight: each is made before the tokens of the last one are known."""

from __future__ import annotations

import pytest

from mmserve.httpserver.output.answer_delta import AnswerDelta
from mmserve.httpserver.output.detokenizer import Detokenizer
from mmserve.httpserver.output.vocabulary import Vocabulary
from mmserve.messages.sampling import SamplingParams
from tests.fakes.http.http_services import byte_tokenizer
from tests.fakes.ranks.rank import generate_alone
from tests.unit.router.builders import Engine, abort, request

PROMPT = list(range(100, 140))


def generate(engine: Engine, prompt: list[int], **sampling: object) -> list[int]:
    """The tokens of the sequence computed by itself."""
    return generate_alone(prompt, SamplingParams(**sampling), engine.context_tokens)[0]


def test_a_decode_is_planned_before_the_token_that_it_computes_is_known() -> None:
    engine = Engine(depth=2)
    engine.scheduler.receive(request("a", PROMPT, max_tokens=5))
    engine.plan()
    prefill, decode = (plan.steps[0] for plan in engine.in_flight)
    assert (prefill.start, prefill.num_tokens, prefill.sample) == (0, 40, True)
    assert (decode.start, decode.num_tokens, decode.sample) == (40, 1, True)
    engine.run()
    assert engine.output("a") == generate(engine, PROMPT, max_tokens=5)


@pytest.mark.parametrize("depth", [1, 2])
def test_no_step_is_planned_beyond_max_length(depth: int) -> None:
    engine = Engine(depth=depth, max_model_len=50)
    for name, max_tokens in (("one", 1), ("five", 5), ("context", 1000)):
        engine.scheduler.receive(request(name, [ord(name[0]), *PROMPT[1:]], max_tokens=max_tokens))
    engine.run()
    assert [engine.finish(name) for name in ("one", "five", "context")] == ["length"] * 3
    assert engine.rank.num_tokens_computed == 3 * 40 + 0 + 4 + 9


def test_the_token_in_flight_after_a_stop_token_is_discarded() -> None:
    engine = Engine(depth=2)
    whole = generate(engine, PROMPT, max_tokens=60)
    index = next(index for index in range(3, 60) if whole[index] not in whole[:index])
    engine.scheduler.receive(request("a", PROMPT, max_tokens=60, stop_ids=(whole[index],)))
    while engine.finish("a") is None:
        engine.run_step()
    assert engine.in_flight, "one more step was planned"
    assert engine.scheduler.kv.num_used > 0, "its blocks are still written to"
    engine.run()
    assert (engine.finish("a"), engine.output("a")) == ("stop", whole[: index + 1])
    assert engine.rank.num_tokens_computed == 40 + index + 1
    assert engine.scheduler.kv.num_used == 0
    assert not engine.rank.num_used_slots
    engine.check_memory()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_stop_string_ends_the_text_whatever_is_in_flight(depth: int) -> None:
    """The worker finds it in a reply and aborts the sequence. Tokens behind it are in no text and in no count."""
    engine, tokenizer = Engine(depth=depth), byte_tokenizer()
    whole, other = generate(engine, PROMPT, max_tokens=60), generate(engine, PROMPT[::-1], max_tokens=40)
    stop = tokenizer.decode(whole[20:23])
    shown, _, _ = tokenizer.decode(whole).partition(stop)
    text, deltas = Detokenizer(Vocabulary(tokenizer), 0, (stop,)), list[AnswerDelta]()
    engine.scheduler.receive(request("a", PROMPT, max_tokens=60))
    engine.scheduler.receive(request("b", PROMPT[::-1], max_tokens=40))
    while not deltas or deltas[-1].finish is None:
        engine.run_step()
        deltas.append(text.push(engine.replies["a", 0][-1]))
    assert len(engine.in_flight) == depth - 1
    assert all(any(step.sample for step in plan.steps) for plan in engine.in_flight), "one more of its tokens"
    engine.scheduler.receive(abort("a"))
    engine.run()
    assert (engine.finish("a"), engine.finish("b")) == ("abort", "length")
    assert ("".join(delta.text for delta in deltas), deltas[-1].finish) == (shown, "stop")
    assert sum(delta.num_tokens for delta in deltas) == len(shown) + 3
    assert engine.output("a") == whole[: len(shown) + 3]
    assert engine.output("b") == other
    assert engine.scheduler.kv.num_used == 0
    engine.check_memory()


@pytest.mark.parametrize("num_prompt", [26, 27, 28])
def test_as_much_of_an_answer_is_cached_as_without_overlap(num_prompt: int) -> None:
    """Including a block whose last token was not known when the last step was planned."""
    cached = []
    for depth in (1, 2):
        engine = Engine(depth=depth)
        engine.scheduler.receive(request("a", PROMPT[:num_prompt], max_tokens=6))
        engine.run()
        engine.scheduler.receive(request("b", [*PROMPT[:num_prompt], *engine.output("a"), *range(10)]))
        engine.run()
        cached.append(engine.replies["b", 0][0].num_cached_tokens // 16)
        engine.check_memory()
    assert cached == [(num_prompt + 5) // 16] * 2


def test_a_block_is_matched_only_once_its_last_token_is_known() -> None:
    engine = Engine(depth=2)
    writer = PROMPT[:31]
    engine.scheduler.receive(request("writer", writer, max_tokens=20))
    engine.plan()
    assert engine.in_flight[1].steps[0].start == 31, "it fills the second block"
    assert engine.scheduler.kv.match_prefix(engine.scheduler._running.sequences[0].tokens).num_tokens == 16
    engine.run_step()
    engine.run_step()
    follower = [*writer, *engine.output("writer")[:1], 7]
    engine.scheduler.receive(request("follower", follower, max_tokens=4))
    engine.run()
    assert engine.replies["follower", 0][0].num_cached_tokens == 32
    assert engine.output("follower") == generate(engine, follower, max_tokens=4)


def test_no_sequence_is_preempted_when_the_next_result_frees_blocks() -> None:
    engine = Engine(depth=2, num_blocks=4)
    engine.scheduler.receive(request("ends", PROMPT[:30], max_tokens=2))
    engine.scheduler.receive(request("grows", PROMPT[::-1][:31], max_tokens=33))
    engine.run_step()
    engine.plan()
    assert len(engine.in_flight) == 1, "the next step needs a block of the sequence that is about to end"
    engine.run()
    assert [engine.finish(name) for name in ("ends", "grows")] == ["length"] * 2
    assert not engine.metrics["num_preemptions"]


def test_an_aborted_sequence_keeps_its_blocks_until_its_step_is_done() -> None:
    engine = Engine(depth=2)
    engine.scheduler.receive(request("a", PROMPT, max_tokens=60))
    engine.run_step()
    engine.scheduler.receive(abort("a"))
    engine.take_replies()
    assert engine.finish("a") == "abort"
    assert engine.scheduler.kv.num_used > 0
    assert engine.scheduler.schedule() is None, "its slot is freed when its step is done"
    engine.apply()
    assert engine.scheduler.kv.num_used == 0
    plan = engine.run_step()
    assert plan is not None
    assert (plan.free, plan.steps) == ((0,), ())
    assert engine.scheduler.idle
    assert len(engine.output("a")) == 1
    engine.check_memory()


def test_a_late_failure_does_not_end_the_next_sequence_in_the_slot() -> None:
    engine = Engine(depth=2, max_num_seqs=1)
    engine.scheduler.receive(request("bad", PROMPT, seed=13, max_tokens=60))
    engine.run_step()
    engine.rank.broken_seeds.add(13)
    engine.scheduler.receive(abort("bad"))
    engine.scheduler.receive(request("next", PROMPT[::-1], max_tokens=6))
    engine.run()
    assert (engine.finish("bad"), engine.finish("next")) == ("abort", "length")
    assert engine.output("next") == generate(engine, PROMPT[::-1], max_tokens=6)
    engine.check_memory()


def test_a_failure_invalidates_blocks_that_the_step_in_flight_fills() -> None:
    """The first chunk fails while the second one, which fills a block, and a sequence that shares it are in flight."""
    engine = Engine(depth=2, max_num_batched_tokens=12)
    prompt = PROMPT[:17]
    engine.rank.broken_seeds.add(13)
    engine.scheduler.receive(request("bad", prompt, seed=13))
    engine.scheduler.receive(request("follower", [*prompt, 9], seed=1))
    engine.plan()
    assert [[step.start for step in plan.steps] for plan in engine.in_flight] == [[0], [12, 16]]
    engine.apply()
    engine.take_replies()
    assert engine.finish("bad") == "error"
    engine.rank.broken_seeds.clear()
    engine.run()
    assert engine.output("follower") == generate(engine, [*prompt, 9], seed=1, max_tokens=8)
    assert not engine.metrics["num_preemptions"]
    engine.check_memory()


def test_a_failure_ends_its_sequence_once() -> None:
    engine = Engine(depth=2)
    engine.scheduler.receive(request("bad", PROMPT, seed=13, max_tokens=60))
    engine.scheduler.receive(request("good", PROMPT, seed=1))
    engine.run_step()
    engine.rank.broken_seeds.add(13)
    engine.run()
    assert (engine.finish("bad"), engine.replies["bad", 0][-1].message) == ("error", "not a number")
    assert engine.output("good") == generate(engine, PROMPT, seed=1, max_tokens=8)
    assert engine.scheduler.kv.num_used == 0
    engine.check_memory()
