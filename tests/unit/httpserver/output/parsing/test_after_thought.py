"""A client's grammar behind the end of a thought, and beside calls of tools, in each form that grammars have."""

from __future__ import annotations

import pytest
from llguidance import LLMatcher, LLTokenizer

from mmserve.grammar.isolated import byte_tokenizer, error_of
from mmserve.grammar.sources import choice_grammar, json_object_grammar, lark_grammar, regex_grammar
from mmserve.grammar.structural_tag import structural_tag_grammar
from mmserve.httpserver.output.parsing.formats import CALLS, Format, Thinking
from mmserve.httpserver.output.parsing.grammar.tool_grammar import after_thought, calls_or_answer

TAG = {"structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}], "triggers": ["<f>"]}


@pytest.fixture(scope="module")
def bytes_only(tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("no_tokenizer"))


FORMS = pytest.mark.parametrize(
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


@FORMS
def test_the_thought_is_free_and_the_answer_is_not(
    grammar: str, fitting: str, other: str, bytes_only: LLTokenizer
) -> None:
    combined = after_thought(Thinking("<think>", "</think>"), grammar, {})
    assert error_of(combined, bytes_only) == ""
    for answer, fits in ((fitting, True), (other, False)):
        matcher = LLMatcher(bytes_only, combined, log_level=0)
        encoded = list(f"any <thought>\n</think>\n\n{answer}".encode())
        assert (matcher.try_consume_tokens(encoded) == len(encoded) and matcher.is_accepting()) == fits


TOOLS = {"f": {"type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": False}}
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'


@FORMS
@pytest.mark.parametrize("parallel", [True, False])
def test_an_answer_calls_tools_or_fits(
    grammar: str, fitting: str, other: str, parallel: bool, bytes_only: LLTokenizer
) -> None:
    combined = calls_or_answer(Format(CALLS["hermes"]), TOOLS, parallel, {}, grammar)
    assert combined is not None
    assert error_of(combined, bytes_only) == ""
    wrong_call = CALL.replace('{"x": 1}', '{"x": "one"}')
    for answer, fits in (
        (fitting, True),
        (other, False),
        (CALL, True),
        (f"{CALL}\n{CALL}", parallel),
        (wrong_call, False),
        (fitting + CALL, False),
    ):
        if "<f>" in grammar and answer not in (fitting, CALL):
            continue  # text that is free but for its tags
        matcher = LLMatcher(bytes_only, combined, log_level=0)
        encoded = list(answer.encode())
        assert (matcher.try_consume_tokens(encoded) == len(encoded) and matcher.is_accepting()) == fits, answer


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_no_opener_begins_are_not_mixed_with_answers(name: str, bytes_only: LLTokenizer) -> None:
    schemas = {"f": {"type": "object", "properties": {}, "additionalProperties": False}}
    combined = calls_or_answer(Format(CALLS[name]), schemas, True, {}, json_object_grammar())
    assert (combined is None) == bool(CALLS[name].open_at_start)
    if combined is not None:
        assert error_of(combined, bytes_only) == ""
        matcher = LLMatcher(bytes_only, combined, log_level=0)
        assert matcher.try_consume_tokens(list(b'{"any": [1]}')) == 12


def test_a_model_without_calls_has_no_such_grammar() -> None:
    assert calls_or_answer(Format(), TOOLS, True, {}, json_object_grammar()) is None
