"""Sequences with images that are not encoded: what they ask for, what they compute meanwhile, and how they end."""

from __future__ import annotations

import pytest

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.messages.request import AbortReason, AbortRequest, EncodeRequest, WorkerDied
from tests.fakes.ranks.rank import generate_alone
from tests.unit.router.builders import Engine, abort, request, span


def _image(item_id: int, num_tokens: int = 30) -> list[int]:
    first = FIRST_VIRTUAL_TOKEN + 100 * item_id
    return list(range(first, first + num_tokens))


TEXT, TAIL = list(range(100, 140)), list(range(200, 210))
PROMPT = [*TEXT, *_image(1), *TAIL]
SPANS = (span(40, 30, 1, encoded=False),)
TWO = [*TEXT, *_image(1), *TAIL, *_image(2), *TAIL]
TWO_SPANS = (*SPANS, span(80, 30, 2, encoded=False))


def _alone(engine: Engine, message) -> list[int]:
    prompt = list(memoryview(message.prompt_ids).cast("q"))
    return generate_alone(prompt, message.sampling, engine.context_tokens)[0]


def _asked(engine: Engine) -> list[tuple[str, list[int]]]:
    """(request id, item ids) of all requests to visual servers."""
    received = [each for each in engine.encoders.received if isinstance(each, EncodeRequest)]
    return [(each.id, [each.item_id for each in each.spans]) for each in received]


@pytest.mark.parametrize("depth", [1, 2])
def test_text_before_an_image_is_computed_while_it_is_encoded(depth: int) -> None:
    engine = Engine(max_num_batched_tokens=24, depth=depth)
    message = request("a", PROMPT, spans=SPANS)
    engine.scheduler.receive(message)
    engine.run()
    assert _asked(engine) == [("a", [1])]
    assert engine.rank.num_tokens_computed == len(TEXT)
    assert (engine.scheduler.num_running, engine.scheduler.kv.num_used) == (0, 0), "it holds nothing while it waits"
    engine.encode_next()
    engine.run()
    assert engine.output("a") == _alone(engine, message)
    assert engine.rank.num_tokens_computed == len(PROMPT) + 8 - 1, "nothing is computed twice"
    first = engine.replies["a", 0][0]
    assert (first.num_cached_tokens, first.not_encoded) == (0, ()), "its own text is no hit"
    assert engine.metrics["prefix_cache_hits"] == [0]
    assert not engine.metrics["mm_images_not_encoded"]


def test_a_request_with_several_images_begins_with_the_first() -> None:
    engine = Engine()
    message = request("a", TWO, spans=TWO_SPANS)
    engine.scheduler.receive(message)
    engine.run()
    assert _asked(engine) == [("a", [1, 2])]
    engine.encode_next()
    engine.run()
    assert engine.rank.num_tokens_computed == 80, "up to the second image"
    engine.encode_next()
    engine.run()
    assert engine.output("a") == _alone(engine, message)
    assert engine.rank.num_tokens_computed == len(TWO) + 8 - 1


def test_little_text_before_an_image_waits_for_it() -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", [*TEXT[:15], *_image(1), *TAIL], spans=(span(15, 30, 1, encoded=False),)))
    assert engine.run() == 0
    engine.encode_next()
    engine.run()
    assert engine.finish("a") == "length"


def test_text_that_is_not_worth_a_step_waits_for_its_image_unless_others_run() -> None:
    engine = Engine()
    engine.scheduler._admission._own_step_tokens = lambda: len(TEXT) + 1.0
    engine.scheduler.receive(request("alone", PROMPT, spans=SPANS))
    assert engine.run() == 0
    engine.scheduler.receive(abort("alone"))
    engine.scheduler.receive(request("text", [1, 2, 3], max_tokens=30))
    engine.run_step()
    engine.scheduler.receive(request("beside", PROMPT, spans=SPANS))
    engine.run()
    assert engine.rank.num_tokens_computed == 3 + 29 + len(TEXT)
    engine.run_and_encode()
    assert engine.finish("beside") == "length"


def test_a_request_that_was_computed_when_the_engine_died_is_not_computed_in_parts() -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", PROMPT, spans=SPANS, num_deaths=1))
    assert engine.run() == 0
    engine.encode_next()
    engine.run()
    assert engine.finish("a") == "length"


def test_an_image_whose_keys_and_values_are_cached_is_not_encoded() -> None:
    engine = Engine()
    engine.scheduler.receive(request("first", PROMPT, spans=SPANS))
    engine.run_and_encode()
    engine.encoders.encoded.clear()
    again = request("again", TWO, spans=TWO_SPANS, seed=3)
    engine.scheduler.receive(again)
    engine.run_and_encode()
    assert _asked(engine) == [("first", [1]), ("again", [2])]
    assert engine.output("again") == _alone(engine, again)
    assert engine.replies["again", 0][0].not_encoded == (1,)
    assert engine.metrics["mm_images_not_encoded"] == [1]


def test_with_another_salt_the_image_is_encoded_again() -> None:
    engine = Engine()
    for salt in ("one", "other"):
        engine.scheduler.receive(request(salt, PROMPT, spans=SPANS, cache_salt=salt))
        engine.run_and_encode()
    assert _asked(engine) == [("one", [1]), ("other", [1])]


def test_an_image_is_encoded_if_its_blocks_are_evicted_before_the_start() -> None:
    engine = Engine(num_blocks=12, max_num_seqs=1)
    engine.scheduler.receive(request("first", PROMPT, spans=SPANS, max_tokens=1))
    engine.run_and_encode()
    engine.encoders.encoded.clear()
    engine.scheduler.receive(request("large", range(1000, 1100), max_tokens=90))
    engine.run_step()
    again = request("again", PROMPT, spans=SPANS, seed=3)
    engine.scheduler.receive(again)
    assert _asked(engine) == [("first", [1])], "its blocks are cached"
    engine.run_and_encode()
    assert _asked(engine) == [("first", [1]), ("again", [1])]
    assert engine.output("again") == _alone(engine, again)
    assert not engine.metrics["mm_images_not_encoded"]


def test_a_preempted_sequence_asks_for_an_image_that_it_did_not_need_before() -> None:
    engine = Engine(num_blocks=10, expects_short=True)
    engine.scheduler.receive(request("first", PROMPT, spans=SPANS, max_tokens=1))
    engine.run_and_encode()
    engine.encoders.encoded.clear()
    engine.scheduler.receive(request("old", range(1000, 1030), max_tokens=120, stop_ids=(9999,)))
    engine.run_step()
    young = request("young", PROMPT, spans=SPANS, max_tokens=40, stop_ids=(9999,))
    engine.scheduler.receive(young)
    engine.run_and_encode()
    assert engine.metrics["num_preemptions"]
    assert _asked(engine) == [("first", [1]), ("young", [1])]
    assert engine.output("young") == _alone(engine, young)
    assert engine.replies["young", 0][0].not_encoded == (1,), "it was preempted after its first token"


def test_the_end_of_a_sequence_ends_what_it_has_asked_for() -> None:
    engine = Engine()
    for name, worker in (("aborted", 0), ("replaced", 0), ("orphan", 1)):
        engine.scheduler.receive(request(name, PROMPT, spans=SPANS, reply_to=worker))
    engine.run()
    engine.scheduler.receive(abort("aborted"))
    engine.scheduler.receive(request("replaced", PROMPT, spans=SPANS, attempt=1))
    engine.scheduler.receive(WorkerDied(worker=1, died_s=1.0))
    engine.run()
    ended = [each for each in engine.encoders.received if isinstance(each, AbortRequest)]
    assert [(each.id, each.attempt) for each in ended] == [("aborted", 0), ("replaced", 0), ("orphan", 0)]
    assert engine.finish("aborted") == "abort"
    assert list(engine.encoders.requests) == ["replaced"]
    engine.run_and_encode()
    assert engine.finish("replaced", 1) == "length"
    assert engine.scheduler.kv.num_used == 0


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    ("reason", "finish"),
    [("media_error", "media_error"), ("queue_timeout", "abort"), ("shortage", "abort"), ("media_lost", "media_lost")],
)
def test_an_image_that_fails_ends_its_sequence_alone(reason: AbortReason, finish: str, depth: int) -> None:
    """While the text before it is being computed, and when that is done."""
    engine = Engine(depth=depth)
    failed = abort("early", reason=reason, message="why", media_index=0), abort("late", reason=reason, message="why")
    other = request("other", TWO, spans=TWO_SPANS)
    for message in (request("early", PROMPT, spans=SPANS), other):
        engine.scheduler.receive(message)
    engine.run_step(lambda: engine.scheduler.receive(failed[0]))
    engine.scheduler.receive(request("late", PROMPT, spans=SPANS))
    engine.run()
    engine.scheduler.receive(failed[1])
    engine.encoders.receive(engine.scheduler.take_encoder_messages())
    assert list(engine.encoders.requests) == ["other"]
    engine.run_and_encode()
    assert [engine.finish(name) for name in ("early", "late", "other")] == [finish, finish, "length"]
    assert (engine.replies["early", 0][-1].message, engine.replies["early", 0][-1].media_index) == ("why", 0)
    assert engine.output("other") == _alone(engine, other)
    assert engine.scheduler.kv.num_used == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_a_sequence_preempted_in_the_text_before_its_image_goes_on(depth: int) -> None:
    """Six answers become longer than expected while the long text is computed in chunks."""
    engine = Engine(num_blocks=28, max_num_batched_tokens=22, expects_short=True, depth=depth)
    answers = [request(f"old {n}", [n] * 15, max_tokens=40, stop_ids=(9999,)) for n in range(6)]
    for message in answers:
        engine.scheduler.receive(message)
    while len(engine.output("old 5")) < 12:
        engine.run_step()
    young = request(
        "young", [*range(1000, 1200), *_image(1), *TAIL], spans=(span(200, 30, 1, encoded=False),), max_tokens=3
    )
    engine.scheduler.receive(young)
    engine.run()
    assert engine.metrics["num_preemptions"]
    assert engine.finish("young") is None
    engine.run_and_encode()
    assert _asked(engine) == [("young", [1])]
    for message in (*answers, young):
        assert engine.output(message.id) == _alone(engine, message)


def test_an_answer_to_an_earlier_attempt_is_ignored() -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", PROMPT, spans=SPANS))
    engine.run()
    (late,) = engine.encoders.encode_next()
    engine.scheduler.receive(request("a", PROMPT, spans=SPANS, attempt=1))
    engine.scheduler.receive(late)
    engine.run()
    assert engine.finish("a", 1) is None
    engine.run_and_encode()
    assert engine.finish("a", 1) == "length"


def test_the_times_of_its_images_are_those_of_the_request() -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", PROMPT, spans=SPANS))
    engine.run()
    engine.clock_s += 7.0
    engine.encode_next()
    engine.run()
    times = engine.replies["a", 0][-1].stage_times
    assert list(times) == ["encode", "queue", "prefill", "decode"]
    assert times["queue"] == 0.0, "it waits for a slot only once its image is encoded"
    assert len(engine.metrics["request_queue_time_seconds"]) == 1


def test_prompt_logprobs_need_all_images() -> None:
    engine = Engine()
    engine.scheduler.receive(request("first", PROMPT, spans=SPANS))
    engine.run_and_encode()
    engine.scheduler.receive(request("scored", PROMPT, spans=SPANS, prompt_logprobs=0))
    engine.run_and_encode()
    assert _asked(engine) == [("first", [1]), ("scored", [1])]
    assert engine.finish("scored") == "length"
