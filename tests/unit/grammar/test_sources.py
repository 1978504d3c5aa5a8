"""Grammar texts admit exactly what their sources describe."""

from __future__ import annotations

from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from mmserve.grammar.isolated import byte_tokenizer, error_of
from mmserve.grammar.sources import (
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from mmserve.runtime.errors import InvalidRequest
from tests.fakes.ranks.grammars import JSON


@pytest.fixture(scope="module")
def bytes_only(tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    return byte_tokenizer(tmp_path_factory.mktemp("no_tokenizer"))


def accepts(grammar: str, text: str, tokenizer: LLTokenizer) -> bool:
    matcher = LLMatcher(tokenizer, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    encoded = list(text.encode())
    return matcher.try_consume_tokens(encoded) == len(encoded) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "fitting", "others"),
    [
        (
            JSON,
            ['{"colour":"red","count":7}', '{ "colour" : "blue",\n\t"count": 99 }'],
            ['{"count":7,"colour":"red"}', '{"colour":"green","count":7}', '{"colour":"red","count":100}', "{}", "red"],
        ),
        (json_object_grammar(), ["{}", '{"a":[1,{"b":null}],"c":"é\\n"}'], ["[]", "1", '{"a":}', '{"a":1']),
        (json_schema_grammar({"oneOf": [{"const": 1}, {"const": "a"}]}, "x"), ["1", '"a"'], ["2", '"b"']),
        (regex_grammar("[a-c]+-[0-9]{2}", "x"), ["abc-12"], ["abc-1", "abcd-12", " abc-12"]),
        (
            choice_grammar(["yes", "no", 'say "hi"\n\\', "é😀", "</s>"], "x"),
            ["yes", 'say "hi"\n\\', "é😀", "</s>"],
            ["y"],
        ),
        (lark_grammar('start: "a" b+\nb: "b"', "x"), ["ab", "abbb"], ["a", "ba"]),
        (lark_grammar('root ::= "a" b+\nb ::= [b-c]', "x"), ["ab", "acb"], ["a", "ba"]),
        (json_schema_grammar({"type": "array"}, "x", whitespace=""), ["[1,2]"], ["[1, 2]"]),
    ],
)
def test_a_grammar_admits_what_its_source_describes(
    grammar: str, fitting: list[str], others: list[str], bytes_only: LLTokenizer
) -> None:
    assert not error_of(grammar, bytes_only)
    assert [text for text in fitting if not accepts(grammar, text, bytes_only)] == []
    assert [text for text in others if accepts(grammar, text, bytes_only)] == []


def test_whitespace_between_the_parts_of_json_is_bounded(bytes_only: LLTokenizer) -> None:
    assert accepts(JSON, "{" + " " * 20 + '"colour":"red","count":1}', bytes_only)
    assert not accepts(JSON, "{" + " " * 21 + '"colour":"red","count":1}', bytes_only)


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"not": {}}, "not"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "format": "nope"}, "nope"),
        ({"type": 5}, "type"),
        ({"$ref": "http://127.0.0.1:1/schema.json"}, "not fetch"),
        ({"type": "string", "pattern": "(?=a)b"}, "look"),
        ({"not": {}, "x-guidance": {"lenient": True}}, "not"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(
    schema: dict[str, Any], named: str, bytes_only: LLTokenizer
) -> None:
    assert named in error_of(json_schema_grammar(schema, "x"), bytes_only)


@pytest.mark.parametrize(
    "make",
    [
        lambda: json_schema_grammar({"const": "x" * 300_000}, "field"),
        lambda: regex_grammar("a" * 70_000, "field"),
        lambda: lark_grammar("a" * 70_000, "field"),
        lambda: lark_grammar(" \n", "field"),
        lambda: lark_grammar('root ::= "a" ' * 1000, "field"),
        lambda: lark_grammar("root ::= missing", "field"),
        lambda: lark_grammar("root ::= " + "(" * 3000, "field"),
        lambda: choice_grammar([], "field"),
        lambda: choice_grammar(["a", ""], "field"),
        lambda: choice_grammar(["x" * 200_000, "y" * 200_000], "field"),
    ],
)
def test_sources_have_limits(make: Any) -> None:
    with pytest.raises(InvalidRequest) as refused:
        make()
    assert refused.value.param == "field"


def test_a_schema_that_is_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"items": schema}
    with pytest.raises(InvalidRequest):
        json_schema_grammar(schema, "field")
