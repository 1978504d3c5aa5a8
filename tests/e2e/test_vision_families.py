"""Every family that sees pictures behind the whole server: the texts that transformers writes for the same chats.

A family's tests share one server, whose KV cache has room for little more than one context.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.load.server import serve
from mmserve.checkpoint.load import load
from mmserve.supervisor.startup.plan import kv_token_nbytes
from tests.e2e.picture_chats import (
    CHUNKS,
    GREEDY,
    QUESTIONS,
    THEIR_GREEDY,
    Answer,
    Question,
    ask_all,
    expected,
    request,
    write_generation_config,
)
from tests.e2e.stack import Stack
from tests.fakes.engine import BLOCK_TOKENS
from tests.fakes.picture_families import PICTURE_FAMILIES, Processed

pytestmark = pytest.mark.families

CONTEXT = 320
GENERATION = {"do_sample": False, "max_new_tokens": 8, "repetition_penalty": 1.3, "eos_token_id": [*range(20, 260, 8)]}
"""generation_config.json of the checkpoints. The ids are tokens of bytes, so random models write some."""
STOP = 100
LONG, THEIR_LONG = {"max_tokens": 64, "stop_token_ids": [STOP]}, {"max_new_tokens": 64, "eos_token_id": [STOP]}
"""Answers that may end early, as far as the router knows; fields of a request, and the same for ``generate``."""


class Served(NamedTuple):
    """A family behind a server."""

    directory: Path
    processed: Processed
    stack: Stack

    def expected(self, asked: list[Question], settings: dict[str, Any]) -> list[Answer]:
        """Of transformers."""
        return expected(self.directory, asked, self.processed, settings)


@pytest.fixture(scope="module", params=PICTURE_FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    make, processed = PICTURE_FAMILIES[request.param]
    directory = make(tmp_path_factory.mktemp(request.param))
    write_generation_config(directory, GENERATION)
    kv_nbytes = (CONTEXT + 2 * BLOCK_TOKENS) * kv_token_nbytes(load(directory), 1, 4)
    memory = ("--kv-cache-gb", str(kv_nbytes / (1 << 30)), "--mm-cache-gb", "0.1", "--max-model-len", str(CONTEXT))
    options = ("--dtype", "float32", *memory, "--served-model-name", "tiny", "--http-workers", "1")
    with serve(*options, *CHUNKS, model=str(directory)) as target:
        assert target.pid is not None
        stack = Stack(target.url, target.pid)
        yield Served(directory, processed, stack)
        stack.check_all_released()


def test_16_clients_are_answered_as_by_transformers(family: Served) -> None:
    """Cold, and from the caches. Their fields override generation_config.json."""
    cold, again = ask_all(family.stack, QUESTIONS), ask_all(family.stack, QUESTIONS)
    assert cold == again == family.expected(QUESTIONS, THEIR_GREEDY)


def test_generation_config_is_what_requests_leave_out(family: Served) -> None:
    assert ask_all(family.stack, QUESTIONS, {}) == family.expected(QUESTIONS, {})


def test_a_request_that_was_computed_before_is_found_whole_in_the_prefix_cache(family: Served) -> None:
    """All but its last token, whether a block of the KV cache ends with the prompt or not."""
    client, lengths = family.stack.client(), set[int]()
    questions: list[Question] = [("Once more: ", 0, " and ", 2, "!" * number) for number in range(BLOCK_TOKENS)]
    for question in questions:
        first, second = (client.chat.completions.create(**request(question)) for _ in range(2))
        assert first.choices[0].message == second.choices[0].message
        usage = second.usage
        assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1
        lengths.add(usage.prompt_tokens % BLOCK_TOKENS)
    assert len(lengths) == BLOCK_TOKENS


def test_preempted_sequences_get_the_texts_of_transformers(family: Served) -> None:
    """After many short answers the router expects short ones, so it starts more than the KV cache has room for."""
    stack, few = family.stack, QUESTIONS[:6]
    ask_all(stack, [("no picture",)] * 10, GREEDY | LONG | {"n": 16, "logit_bias": {STOP: 100}})
    assert ask_all(stack, few, GREEDY | LONG) == family.expected(few, THEIR_GREEDY | THEIR_LONG)
    assert stack.metric("num_preemptions_total") > 0
