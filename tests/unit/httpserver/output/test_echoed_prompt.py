"""Where the tokens of a prompt stand in its text: they cover it without gaps, whatever the tokenizer does."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from mmserve.httpserver.conversation import WrittenPrompt
from mmserve.httpserver.output.echoed_prompt import EchoedPrompt
from mmserve.httpserver.output.vocabulary import Vocabulary
from tests.fakes.http.http_services import EOS
from tests.unit.httpserver.output.test_detokenizer import BYTES, FALLBACK, VOCABULARY


def echoed(content: str | list[int], ids: list[int], tokenizer: Tokenizer = BYTES) -> EchoedPrompt:
    vocabulary = VOCABULARY if tokenizer is BYTES else Vocabulary(tokenizer)
    prompt = WrittenPrompt(content if isinstance(content, str) else array("q", content))
    return EchoedPrompt.of(prompt, array("q", ids), vocabulary)


def pieces(prompt: EchoedPrompt) -> list[str]:
    return [prompt.text[token.start : token.end] for token in prompt.tokens()]


def test_a_text_keeps_its_own_characters_and_an_added_bos_token_covers_none() -> None:
    prompt = echoed("hé", [EOS, *"hé".encode()])
    assert prompt.text == "hé"
    assert [(token.start, token.end) for token in prompt.tokens()] == [(0, 0), (0, 1), (1, 1), (1, 2)]
    assert [token.first for token in prompt.tokens()] == [True, True, False, False]


def test_special_tokens_that_the_client_wrote_are_part_of_the_text() -> None:
    for content in ("a</s>b", [97, EOS, 98]):
        prompt = echoed(content, [97, EOS, 98])
        assert prompt.text == "a</s>b"
        assert pieces(prompt) == ["a", "</s>", "b"]


def test_an_incomplete_character_is_one_of_its_own() -> None:
    ids = [97, 0xC3, EOS, 98, 0xE2, 0x96]
    prompt = echoed(ids, ids)
    assert prompt.text.startswith("a\ufffd</s>b")
    assert [(token.start, token.end) for token in prompt.tokens()][:4] == [(0, 1), (1, 1), (2, 6), (6, 7)]
    assert [*prompt.tokens()][-1].end == len(prompt.text)


def test_a_leading_space_that_the_tokenizer_drops_covers_no_character() -> None:
    ids = FALLBACK.encode("one two", add_special_tokens=False).ids
    prompt = echoed("one two", ids, FALLBACK)
    assert "".join(pieces(prompt)) == "one two"
    starts = [token.start for token in prompt.tokens()]
    assert starts == sorted(starts)


@pytest.mark.parametrize("tokenizer", [BYTES, FALLBACK], ids=["bytes", "fallback"])
@given(text=st.text(max_size=20), added=st.booleans())
def test_the_tokens_cover_every_text(tokenizer: Tokenizer, text: str, added: bool) -> None:
    ids = [EOS] * (added and tokenizer is BYTES) + list(tokenizer.encode(text, add_special_tokens=False).ids)
    tokens = [*echoed(text, ids, tokenizer).tokens()]
    edges = [edge for token in tokens for edge in (token.start, token.end)]
    assert edges == sorted(edges)
    if ids:
        assert (edges[0], edges[-1]) == (0, len(text))


def test_a_prompt_counts_its_memory() -> None:
    assert echoed("x" * 1000, [120] * 1000).nbytes > 9000
