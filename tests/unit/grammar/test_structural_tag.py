"""Structural tags: free text, and JSON of a schema after each beginning."""

from __future__ import annotations

from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from mmserve.grammar.isolated import byte_tokenizer, error_of
from mmserve.grammar.structural_tag import structural_tag_grammar
from mmserve.runtime.errors import InvalidRequest

NUMBER = {"begin": "<f=n>", "schema": {"type": "integer"}, "end": "</f>"}
TAG: dict[str, Any] = {
    "type": "structural_tag",
    "structures": [NUMBER, {"begin": "<f=s>", "schema": {"const": "x"}, "end": "</f>"}],
    "triggers": ["<f="],
}


@pytest.fixture(scope="module")
def bytes_only(tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("no_tokenizer"))


def accepts(text: str, tokenizer: LLTokenizer) -> bool:
    matcher = LLMatcher(tokenizer, structural_tag_grammar(TAG, "tag"), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    encoded = list(text.encode())
    return matcher.try_consume_tokens(encoded) == len(encoded) and matcher.is_accepting()


@pytest.mark.parametrize("text", ["", "just text", "a <f=n>12</f> b", '<f=s>"x"</f><f=n>1</f>', "<f but no tag"])
def test_text_and_complete_structures_fit(text: str, bytes_only: LLTokenizer) -> None:
    assert error_of(structural_tag_grammar(TAG, "tag"), bytes_only) == ""
    assert accepts(text, bytes_only)


@pytest.mark.parametrize("text", ["<f=n>red</f>", "a <f=z>", '<f=s>"y"</f>', "<f=n>12", "<f=n>1</g>"])
def test_a_trigger_must_go_on_as_one_of_its_structures(text: str, bytes_only: LLTokenizer) -> None:
    assert not accepts(text, bytes_only)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"structures": []}, "tag"),
        ({"structures": [NUMBER] * 129}, "tag"),
        ({"triggers": []}, "tag"),
        ({"triggers": ["<g="]}, "tag.structures[0].begin"),
        ({"type": "tag"}, "tag"),
        ({"structures": [{"begin": "<f=", "end": ""}]}, "tag"),
        ({"structures": [NUMBER | {"schema": {"const": "x" * 300_000}}]}, "tag.structures[0].schema"),
        ({"structures": [NUMBER | {"schema": {"const": "x" * 200_000}}] * 2}, "tag"),
        ({"format": {}}, "tag"),
    ],
)
def test_other_forms_are_refused(change: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        structural_tag_grammar(TAG | change, "tag")
    assert refused.value.param == param
