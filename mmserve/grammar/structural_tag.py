"""Structural tags: free text in which certain beginnings must be followed by JSON of a schema and an end. Pure."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from llguidance import LLMatcher, StructTag
from msgspec import Meta

from mmserve.grammar.limits import MAX_SOURCE_CHARS
from mmserve.grammar.sources import json_schema_text
from mmserve.runtime.errors import InvalidRequest

MAX_STRUCTURES = 128
_Text = Annotated[str, Meta(min_length=1, max_length=1024)]


class Structure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``begin``, JSON that fits ``schema``, ``end``."""

    begin: _Text
    schema: dict[str, Any]
    end: Annotated[str, Meta(max_length=1024)]


class StructuralTag(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form that vLLM and SGLang take. Each ``begin`` starts with one of the triggers; text that contains a trigger
    has to go on as one of the structures that start with it."""

    structures: Annotated[list[Structure], Meta(min_length=1, max_length=MAX_STRUCTURES)]
    triggers: Annotated[list[_Text], Meta(min_length=1, max_length=MAX_STRUCTURES)]
    type: Literal["structural_tag"] = "structural_tag"


def structural_tag_grammar(tag: Any, param: str) -> str:
    """The grammar of a structural tag, given as decoded JSON. Raises InvalidRequest."""
    try:
        read = msgspec.convert(tag, StructuralTag)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{param}: {error}", param=param) from None
    tags = [_tag(structure, read.triggers, f"{param}.structures[{at}]") for at, structure in enumerate(read.structures)]
    grammar = LLMatcher.grammar_from_lark(StructTag.to_grammar(tags, assume_special=False))
    if len(grammar) > MAX_SOURCE_CHARS:
        raise InvalidRequest(f"{param} is longer than {MAX_SOURCE_CHARS} characters", param=param)
    return grammar


def _tag(structure: Structure, triggers: list[str], param: str) -> StructTag:
    trigger = next((trigger for trigger in triggers if structure.begin.startswith(trigger)), None)
    if trigger is None:
        raise InvalidRequest("begin starts with none of the triggers", param=f"{param}.begin")
    schema = json_schema_text(structure.schema, f"{param}.schema")
    return StructTag(trigger=trigger, begin=structure.begin, grammar=schema, end=structure.end)
