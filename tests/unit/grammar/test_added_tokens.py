"""Grammars that name added tokens are validated with the numbers that these have in the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from llguidance import LLTokenizer

from mmserve.grammar.isolated import byte_tokenizer, error_of
from mmserve.httpserver.output.parsing.formats import CALLS, Format
from mmserve.httpserver.output.parsing.grammar.tool_grammar import optional_tool_grammar, tool_grammar

TOKENS = {"</s>": 2, "<tool_call>": 151_657, "</tool_call>": 151_658}
TOOLS = {"paint": {"type": "object", "properties": {"colour": {"type": "string"}}}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> LLTokenizer:
    directory: Path = tmp_path_factory.mktemp("checkpoint")
    added = [{"id": id, "content": content, "special": True} for content, id in TOKENS.items()]
    (directory / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    return byte_tokenizer(directory)


@pytest.mark.parametrize("make", [tool_grammar, optional_tool_grammar])
def test_calls_between_tokens_of_their_own_are_accepted(tokenizer: LLTokenizer, make: object) -> None:
    grammar = make(Format(CALLS["hermes"]), TOOLS, True, TOKENS)  # type: ignore[operator]
    assert f"<[{TOKENS['<tool_call>']}]>" in grammar
    assert error_of(grammar, tokenizer) == ""


def test_a_number_means_the_token_that_has_it(tokenizer: LLTokenizer) -> None:
    assert error_of('start: <[2]> "x"', tokenizer) == ""
    assert error_of('start: <tool_call> "x" </tool_call>', tokenizer) == ""
    assert "too large" in error_of("start: <[151999]>", tokenizer)
