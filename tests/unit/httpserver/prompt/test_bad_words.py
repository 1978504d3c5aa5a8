"""Bad words as tokens: with and without a space before them, within limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmserve.httpserver.prompt.bad_words import bad_word_ids
from mmserve.httpserver.prompt.builder import PromptBuilder
from mmserve.runtime.errors import InvalidRequest
from tests.fakes.models.chat_models import CHATML, LLAMA_2, Kind, deployment_of, write_chat_model


def of_bytes(text: str) -> list[int]:
    return list(text.encode())


def test_each_word_has_two_sequences_and_none_is_repeated() -> None:
    assert bad_word_ids(of_bytes, ["a", " a", "bc"]) == ((97,), (32, 97), (98, 99), (32, 98, 99))


@pytest.mark.parametrize(
    ("words", "param"),
    [
        (["a", " "], "bad_words[1]"),
        (["a", "b" * 65], "bad_words[1]"),
        ([f"{number:03}" + "b" * 50 for number in range(60)], "bad_words"),
    ],
)
def test_words_have_limits(words: list[str], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        bad_word_ids(of_bytes, words)
    assert refused.value.param == param


@pytest.mark.parametrize(("kind", "template"), [("byte-level", CHATML), ("sentencepiece", LLAMA_2)])
def test_the_sequences_are_those_in_the_middle_of_a_text(kind: Kind, template: str, tmp_path: Path) -> None:
    prompts = PromptBuilder(deployment_of(write_chat_model(tmp_path, kind, template, images=False)))
    within, after_space = prompts.bad_word_ids(["red"])
    everything = prompts.tokenizer.encode("(red) red", add_special_tokens=False).ids
    for ids in (within, after_space):
        assert any(tuple(everything[at : at + len(ids)]) == ids for at in range(len(everything)))
    assert within != after_space


def test_a_bad_word_is_never_a_control_token(tmp_path: Path) -> None:
    prompts = PromptBuilder(deployment_of(write_chat_model(tmp_path, "byte-level", CHATML, images=False)))
    control = {token.content: id for id, token in prompts.tokenizer.get_added_tokens_decoder().items()}
    assert "<|im_end|>" in control
    for ids in prompts.bad_word_ids(["<|im_end|>"]):
        assert control["<|im_end|>"] not in ids
