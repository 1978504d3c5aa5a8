"""Log-probabilities of prompts, and requests that end with their prompt."""

from __future__ import annotations

import pytest
from msgspec import structs

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.messages.logprobs import NO_TOKEN, row_nbytes, unpack
from mmserve.messages.step import StepResult
from tests.fakes.ranks.rank import prompt_alone
from tests.unit.router.builders import Engine, request, span

PROMPT = list(range(100, 140))
ROWS = b"".join(prompt_alone(PROMPT, 2)[0])


@pytest.mark.parametrize("depth", [1, 2])
def test_rows_come_chunk_by_chunk_before_the_first_token(depth: int) -> None:
    engine = Engine(max_num_batched_tokens=16, depth=depth)
    engine.scheduler.receive(request("a", PROMPT, max_tokens=2, prompt_logprobs=2))
    engine.run()
    num_rows = [len(reply.prompt_logprobs) // row_nbytes(2) for reply in engine.replies["a", 0]]
    assert num_rows == [16, 16, 7, 0, 0]
    assert engine.prompt_logprobs("a") == ROWS
    assert len(engine.output("a")) == 2


def test_a_cached_prompt_is_computed_again_for_its_rows() -> None:
    engine = Engine()
    for name in ("before", "a", "after"):
        engine.scheduler.receive(request(name, PROMPT, max_tokens=1, prompt_logprobs=2 if name == "a" else None))
        engine.run()
    assert engine.prompt_logprobs("a") == ROWS
    assert [engine.replies[name, 0][-1].num_cached_tokens for name in ("before", "a", "after")] == [0, 0, 39]


def test_rows_that_the_client_has_are_not_sent_again() -> None:
    engine = Engine(max_num_batched_tokens=16)
    engine.scheduler.receive(request("before", PROMPT, max_tokens=1))
    engine.run()
    message = request("a", PROMPT, max_tokens=1, prompt_logprobs=2, num_prompt_logprobs=20, attempt=1)
    engine.scheduler.receive(message)
    engine.run()
    assert engine.prompt_logprobs("a", 1) == ROWS[20 * row_nbytes(2) :]
    assert engine.replies["a", 1][-1].num_cached_tokens == 20, "what only the rows before need may be cached"
    engine.scheduler.receive(structs.replace(message, num_prompt_logprobs=39, attempt=2))
    engine.run()
    assert engine.prompt_logprobs("a", 2) == b""
    assert engine.replies["a", 2][-1].num_cached_tokens == 39


def test_preemption_does_not_repeat_rows() -> None:
    engine = Engine(num_blocks=8, expects_short=True, max_num_batched_tokens=64)
    for name in ("older", "newer"):
        engine.scheduler.receive(request(name, PROMPT, max_tokens=60, prompt_logprobs=2, stop_ids=(99,)))
    engine.run()
    assert engine.metrics["num_preemptions"]
    assert engine.prompt_logprobs("older") == engine.prompt_logprobs("newer") == ROWS


def test_an_image_has_rows_without_a_token() -> None:
    engine = Engine()
    prompt = [100, FIRST_VIRTUAL_TOKEN, FIRST_VIRTUAL_TOKEN + 1, 101]
    engine.scheduler.receive(request("a", prompt, spans=(span(1, 2, 1),), max_tokens=1, prompt_logprobs=0))
    engine.run()
    assert [token for token, _ in unpack(engine.prompt_logprobs("a"))] == [NO_TOKEN, NO_TOKEN, 101]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("length", [1, 16, 33, 64])
def test_a_request_for_no_token_ends_after_its_prompt(length: int, depth: int) -> None:
    """Even if the prompt fills the context and the KV cache."""
    engine = Engine(num_blocks=4, max_num_batched_tokens=16, depth=depth)
    prompt = list(range(100, 100 + length))
    engine.scheduler.receive(request("score", prompt, max_tokens=0, prompt_logprobs=0))
    engine.scheduler.receive(request("embed", prompt, max_tokens=0, pooling=True))
    engine.run()
    rows, embedding = prompt_alone(prompt, 0)
    assert engine.prompt_logprobs("score") == b"".join(rows)
    assert engine.output("score") == engine.output("embed") == []
    assert engine.finish("score") == engine.finish("embed") == "length"
    assert engine.replies["embed", 0][-1].embedding == embedding
    assert set(engine.replies["embed", 0][-1].stage_times) == {"queue", "prefill", "decode"}
    assert engine.scheduler.kv.num_used == 0


def test_a_prompt_of_which_all_but_the_last_token_is_cached_can_be_embedded() -> None:
    engine = Engine()
    for attempt in range(2):
        engine.scheduler.receive(request("a", PROMPT, max_tokens=0, pooling=True, attempt=attempt))
        engine.run()
    first, second = (engine.replies["a", attempt][-1] for attempt in range(2))
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 39)
    assert first.embedding == second.embedding == prompt_alone(PROMPT, 0)[1]


def test_an_embedding_that_does_not_come_back_fails_its_request() -> None:
    engine = Engine()
    engine.scheduler.receive(request("a", PROMPT, max_tokens=0, pooling=True))
    plan = engine.scheduler.schedule()
    assert plan is not None
    engine.scheduler.apply(plan, StepResult(step_id=plan.step_id, tokens=()))
    engine.take_replies()
    assert engine.finish("a") == "error"


def test_a_suspect_that_only_scores_is_computed_alone_and_to_its_end() -> None:
    engine = Engine(max_num_batched_tokens=16)
    for name in ("a", "b"):
        engine.scheduler.receive(request(name, PROMPT, max_tokens=0, prompt_logprobs=2, num_deaths=2))
    engine.run_step()
    assert engine.scheduler.num_running == 1
    engine.run()
    assert engine.prompt_logprobs("a") == engine.prompt_logprobs("b") == ROWS
