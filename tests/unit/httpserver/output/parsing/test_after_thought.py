"""A client's grammar behind the end of a thought, in each form that grammars have."""

from __future__ import annotations

import pytest
from llguidance import LLMatcher, LLTokenizer

from mmserve.grammar.isolated import byte_tokenizer, error_of
from mmserve.grammar.sources import choice_grammar, json_object_grammar, lark_grammar, regex_grammar
from mmserve.grammar.structural_tag import structural_tag_grammar
from mmserve.httpserver.output.parsing.formats import Thinking
from mmserve.httpserver.output.parsing.grammar.tool_grammar import after_thought

TAG = {"structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}], "triggers": ["<f>"]}


@pytest.fixture(scope="module")
def bytes_only(tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("no_tokenizer"))


@pytest.mark.parametrize(
    ("grammar", "fitting", "other"),
    [
        (json_object_grammar(), "{}", "[]"),
        (regex_grammar("a+", ""), "aa", "b"),
        (choice_grammar(["yes", "no"], ""), "no", "never"),
        (lark_grammar('start: "a" thought\nthought: "b"', ""), "ab", "ac"),
        (structural_tag_grammar(TAG, ""), "text <f>1</f>", "text <f>x</f>"),
    ],
    ids=["json", "regex", "choice", "lark", "structural_tag"],
)
def test_the_thought_is_free_and_the_answer_is_not(
    grammar: str, fitting: str, other: str, bytes_only: LLTokenizer
) -> None:
    combined = after_thought(Thinking("<think>", "</think>"), grammar, {})
    assert error_of(combined, bytes_only) == ""
    for answer, fits in ((fitting, True), (other, False)):
        matcher = LLMatcher(bytes_only, combined, log_level=0)
        encoded = list(f"any <thought>\n</think>\n\n{answer}".encode())
        assert (matcher.try_consume_tokens(encoded) == len(encoded) and matcher.is_accepting()) == fits
