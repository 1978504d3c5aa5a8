"""Grammars that hang or crash the compiler end a child process, and are refused; the next grammar is not affected."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from mmserve.grammar.isolated import IsolatedValidator
from mmserve.grammar.sources import json_schema_grammar, lark_grammar, regex_grammar
from tests.fakes.ranks.grammars import JSON

DEADLINE_S = 0.3


@pytest.fixture(scope="module")
def validator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IsolatedValidator]:
    checkpoint = tmp_path_factory.mktemp("checkpoint")
    tokens = [{"id": 300, "content": "<tool_call>", "special": False}, {"id": 301, "content": "</s>", "special": True}]
    (checkpoint / "tokenizer.json").write_text(json.dumps({"version": "1.0", "added_tokens": tokens, "model": {}}))
    with closing(IsolatedValidator(str(checkpoint), deadline_s=DEADLINE_S)) as made:
        yield made


def chain(length: int) -> str:
    rules = "\n".join(f'r{index}: r{index + 1} | "x{index}"' for index in range(length))
    return lark_grammar(f'start: r0\n{rules}\nr{length}: "y"', "x")


def optional(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(count)}}


HOSTILE = {
    "hangs": json_schema_grammar({"type": "integer", "multipleOf": 999_983}, "x"),
    "overflows the stack": chain(2900),
    "2,000 optional properties": json_schema_grammar(optional(2000), "x"),
    "10,000 optional properties": json_schema_grammar(optional(10_000), "x"),
    "nested repetition": regex_grammar("(a{1,100}){1,100}", "x"),
    "nested rules": lark_grammar('start: a{100}\na: b{100}\nb: c{100}\nc: "x"', "x"),
    "endless reference": json_schema_grammar({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "x"),
}
HARMLESS = {
    "schema": JSON,
    "long string": json_schema_grammar({"type": "string", "maxLength": 10**6}, "x"),
    "ambiguous": regex_grammar("(a|a)*b", "x"),
    "added token": lark_grammar("start: <tool_call> /[a-z]+/", "x"),
}


@pytest.mark.parametrize("grammar", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_grammar_is_refused_and_the_next_one_is_not(validator: IsolatedValidator, grammar: str) -> None:
    assert validator.error_of(grammar)
    assert validator.error_of(JSON) == ""


@pytest.mark.parametrize("grammar", HARMLESS.values(), ids=HARMLESS)
def test_a_harmless_grammar_is_accepted(validator: IsolatedValidator, grammar: str) -> None:
    assert validator.error_of(grammar) == ""


def test_the_error_of_a_grammar_says_what_is_wrong(validator: IsolatedValidator) -> None:
    assert "uniqueItems" in validator.error_of(json_schema_grammar({"type": "array", "uniqueItems": True}, "x"))
    assert "unknown special token" in validator.error_of(lark_grammar("start: <nothing>", "x"))


def test_the_child_ends_with_its_parent(tmp_path: Path) -> None:
    validator = IsolatedValidator(str(tmp_path))
    assert validator.error_of(JSON) == ""
    child = psutil.Process(validator._child.pid)
    validator.close()
    assert not child.is_running()
