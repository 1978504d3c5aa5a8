"""Grammars for the byte vocabulary of tests.fakes.models.checkpoints, and what its tokens spell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mmserve.grammar.sources import json_schema_grammar
from tests.fakes.models.checkpoints import EOS, tokenizer

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "blue"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["colour", "count"],
    "additionalProperties": False,
}
JSON = json_schema_grammar(SCHEMA, "schema")


def encode(text: str) -> list[int]:
    return list(tokenizer().encode(text, add_special_tokens=False))


def decode(tokens: Iterable[int]) -> str:
    """Without the EOS token."""
    return str(tokenizer().decode([token for token in tokens if token != EOS]))
