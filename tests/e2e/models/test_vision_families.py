"""Every family that sees pictures behind the whole server: the texts that transformers writes for the same chats.

A family's tests share one server, whose KV cache has room for little more than one context. The last test kills a rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.load.server import serve
from mmserve.checkpoint.load import load
from mmserve.supervisor.startup.plan import kv_token_nbytes
from tests.e2e.commands.plans import check_plan
from tests.e2e.models.picture_chats import (
    CHUNKS,
    GREEDY,
    LARGE,
    NUM_TOKENS,
    QUESTIONS,
    THEIR_GREEDY,
    Answer,
    Question,
    ask_all,
    ask_streamed,
    expected,
    inputs_of,
    request,
    write_generation_config,
)
from tests.e2e.stack import Stack
from tests.fakes.models.picture_families import PICTURE_FAMILIES, Processed
from tests.fakes.ranks.engine import BLOCK_TOKENS

pytestmark = pytest.mark.families

CONTEXT = 320
SERVED = [name for name in PICTURE_FAMILIES if name != "idefics3"]
"""Without Idefics3, which the same code computes as SmolVLM; ``test_quantized.py`` asks it through a server."""
RANKS = dict.fromkeys(SERVED, 2) | dict.fromkeys(("qwen2_5_vl", "qwen3_vl", "internvl", "pixtral", "paddleocr_vl"), 1)
"""Tensor-parallel. One rank alone computes all layers in one call. Of families whose texts the same code computes
(Qwen's, those with Llama's) some have one and some have two."""
GENERATION = {"do_sample": False, "max_new_tokens": 8, "repetition_penalty": 1.3, "eos_token_id": [*range(20, 260, 8)]}
"""generation_config.json of the checkpoints. The ids are tokens of bytes, so random models write some."""
STOP = 100
LONG, THEIR_LONG = {"max_tokens": 64, "stop_token_ids": [STOP]}, {"max_new_tokens": 64, "eos_token_id": [STOP]}
"""Answers that may end early, as far as the router knows; fields of a request, and the same for ``generate``."""


class Served(NamedTuple):
    """A family behind a server. ``memory``: the options that a plan takes too."""

    directory: Path
    memory: tuple[str, ...]
    processed: Processed
    stack: Stack
    known: dict[str, Answer]
    """What transformers answered, for tests that ask the same."""

    def expected(self, asked: list[Question], settings: dict[str, Any] = THEIR_GREEDY) -> list[Answer]:
        """Of transformers."""
        keys = {question: f"{question} {settings}" for question in asked}
        missing = [question for question, key in keys.items() if key not in self.known]
        found = expected(self.directory, missing, self.processed, settings)
        self.known.update(zip([keys[question] for question in missing], found, strict=True))
        return [self.known[keys[question]] for question in asked]

    def prompt(self, question: Question) -> list[int]:
        """Its token ids, with the image token's id for each row of a picture."""
        found: list[int] = inputs_of(self.directory, question, self.processed)["input_ids"][0].tolist()
        return found

    def ask(self, question: Question, max_tokens: int = NUM_TOKENS) -> tuple[Answer, int]:
        """The answer, and the tokens of the prompt that were found in the prefix cache."""
        fields = GREEDY | {"max_tokens": max_tokens}
        reply = self.stack.client().chat.completions.create(**request(question, fields))
        choice, usage = reply.choices[0], reply.usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return Answer(choice.message.content, choice.finish_reason), usage.prompt_tokens_details.cached_tokens or 0


@pytest.fixture(scope="module", params=SERVED)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    make, processed = PICTURE_FAMILIES[request.param]
    directory, ranks = make(tmp_path_factory.mktemp(request.param)), RANKS[request.param]
    write_generation_config(directory, GENERATION)
    kv_nbytes = (CONTEXT + 2 * BLOCK_TOKENS) * kv_token_nbytes(load(directory), ranks, 4)
    caches = ("--kv-cache-gb", str(kv_nbytes / (1 << 30)), "--mm-cache-gb", "0.1", "--max-model-len", str(CONTEXT))
    memory = ("--dtype", "float32", *caches, *CHUNKS, "--http-workers", "1", "--tp", str(ranks))
    with serve(*memory, "--served-model-name", "tiny", model=str(directory)) as target:
        assert target.pid is not None
        stack = Stack(target.url, target.pid)
        yield Served(directory, memory, processed, stack, {})
        stack.check_all_released()


def test_16_clients_are_answered_as_by_transformers(family: Served) -> None:
    """Cold, and from the caches. Their fields override generation_config.json."""
    cold, again = ask_all(family.stack, QUESTIONS), ask_all(family.stack, QUESTIONS)
    assert cold == again == family.expected(QUESTIONS)


def test_a_plan_says_what_the_server_has(family: Served) -> None:
    family.ask(("no picture",))
    check_plan(family.stack, str(family.directory), *family.memory)


def test_generation_config_is_what_requests_leave_out(family: Served) -> None:
    few = QUESTIONS[:6]
    assert ask_all(family.stack, few, {}) == family.expected(few, {})


def test_a_request_that_was_computed_before_is_found_whole_in_the_prefix_cache(family: Served) -> None:
    """All but its last token, wherever a block of the KV cache ends: with the prompt, or a token before or after it."""
    shortest = len(family.prompt(_once_more(0)))
    for offset in (0, 1, 7, BLOCK_TOKENS - 1):
        question = _once_more((offset - shortest) % BLOCK_TOKENS)
        length = len(family.prompt(question))
        assert length % BLOCK_TOKENS == offset
        first, _ = family.ask(question)
        assert family.ask(question) == (first, length - 1)
        assert [first] == family.expected([question])


def _once_more(number: int) -> Question:
    return ("Once more: ", 0, " and ", 2, "!" * number)


def test_a_prefix_hit_that_ends_inside_a_picture(family: Served) -> None:
    """Within its last run of rows, of a tile where there are any. Another prompt has taken the blocks after it."""
    image_token = load(family.directory).image_token_id
    prompt = family.prompt(_large(0))
    behind = prompt[::-1].index(image_token)
    rows = len(list(takewhile(image_token.__eq__, prompt[len(prompt) - behind - 1 :: -1])))
    inside = len(prompt) - behind - rows // 2
    question = _large(-inside % BLOCK_TOKENS)
    prompt, num_cached = family.prompt(question), inside + -inside % BLOCK_TOKENS
    assert prompt[num_cached - 1] == prompt[num_cached] == image_token
    first, _ = family.ask(question)
    _fill_all_blocks_but(family, prompt, num_cached // BLOCK_TOKENS)
    assert family.ask(question) == (first, num_cached)
    assert [first] == family.expected([question])


def _large(number: int) -> Question:
    return ("!" * number + "Look at ", LARGE, "!")


def _fill_all_blocks_but(family: Served, prompt: Sequence[int], num_blocks: int) -> None:
    """Asks something else, for which all blocks of the KV cache are needed but the first ``num_blocks`` of a prompt."""
    shortest = family.prompt(("~",))
    num_shared = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(prompt, shortest, strict=False))))
    num_needed = int(family.stack.metric("kv_blocks")) - num_blocks + num_shared // BLOCK_TOKENS
    max_tokens = 4
    num_computed = num_needed * BLOCK_TOKENS - 1
    family.ask(("~" * (num_computed - max_tokens + 2 - len(shortest)),), max_tokens)


def test_preempted_sequences_get_the_texts_of_transformers(family: Served) -> None:
    """After many short answers the router expects short ones, so it starts more than the KV cache has room for."""
    stack, few = family.stack, QUESTIONS[:6]
    ask_all(stack, [("no picture",)] * 10, GREEDY | LONG | {"n": 16, "logit_bias": {STOP: 100}})
    assert ask_all(stack, few, GREEDY | LONG) == family.expected(few, THEIR_GREEDY | THEIR_LONG)
    assert stack.metric("num_preemptions_total") > 0


def test_streams_go_on_with_the_texts_of_transformers_when_a_rank_and_the_cache_server_are_killed(
    family: Served,
) -> None:
    """Prompts are computed again, from pictures that are encoded again."""
    stack, few = family.stack, QUESTIONS[:6]
    victims = [stack.processes("mmserve: model_backend")[-1], *stack.processes("mmserve: cache_server")]
    resent = stack.metric("requests_resent_total")
    texts = ask_streamed(stack, few, GREEDY | LONG, lambda: [victim.kill() for victim in victims])
    assert texts == [answer.text for answer in family.expected(few, THEIR_GREEDY | THEIR_LONG)]
    assert stack.metric("requests_resent_total") > resent
