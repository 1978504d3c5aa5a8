"""The format that a checkpoint declares itself: ``response_template`` of its tokenizer_config.json. Pure.

transformers (5.13 on, "chat response parsing") describes an answer as fields, each between an opening and a closing
literal or pattern, with a parser for what is between. Its patterns are for whole texts and may backtrack, so they are
not run here: the template's literals are matched with the table of ``formats``, and JSON calls between literals of
their own make a row of their own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mmserve.httpserver.output.parsing.formats import CALLS, Calls, Format, Thinking
from mmserve.httpserver.output.parsing.layouts.json_calls import ARGUMENT_KEYS, JsonCalls

_THINKING_FIELDS = ("thinking", "reasoning_content", "reasoning")
_JSON_ROWS = ("hermes", "llama3-json", "mistral", "deepseek")
_PLAIN = re.compile(r"(?:\\([^a-zA-Z0-9])|[^\\.*+?()\[\]{}|^$])(?![*?{])")
"""One character of a pattern that stands for itself, once."""


def declared_format(template: object) -> Format | None:
    """The format of a ``response_template``; None if it is none, or not one that can be read here.

    A field that the template lacks is None in the format. A field that cannot be read makes the whole None, so that the
    chat template is asked instead.
    """
    fields = template.get("fields") if isinstance(template, Mapping) else None
    if (
        not isinstance(fields, Mapping)
        or not fields
        or not all(isinstance(field, Mapping) for field in fields.values())
    ):
        return None
    if any(key in fields.get("content", {}) for key in ("open", "open_pattern")):
        return None  # text between markers, as in channels
    thinking, calls = None, None
    for name, field in fields.items():
        if name in _THINKING_FIELDS and (thinking := _thinking(field)) is None:
            return None
        if name == "tool_calls" and (calls := _calls(field)) is None:
            return None
    return Format(calls, thinking)


def _thinking(field: Mapping[str, Any]) -> Thinking | None:
    opens, closes = _literals(field, "open"), _literals(field, "close")
    return Thinking(opens[0], closes[0]) if opens and closes else None


def _calls(field: Mapping[str, Any]) -> Calls | None:
    opens, closes = _literals(field, "open"), _literals(field, "close")
    plain_json = field.get("content") == "json" and not field.get("content_args")
    for name, known in CALLS.items():
        if (name in _JSON_ROWS) == plain_json and any(row in literal for row in known.open for literal in opens):
            return known
    if plain_json and opens and closes and _makes_calls(field):
        return Calls(tuple(opens), JsonCalls(close=closes[0]))
    return None


def _makes_calls(field: Mapping[str, Any]) -> bool:
    """Whether calls are made of objects with a name and arguments, under the keys that ``JsonCalls`` reads."""
    transform = field.get("transform")
    function = transform.get("function") if isinstance(transform, Mapping) else None
    if function == "{content}":
        return True
    prefix = "" if field.get("transform_each") else "content."
    return isinstance(function, Mapping) and any(
        dict(function) == {"name": f"{{{prefix}name}}", "arguments": f"{{{prefix}{key}}}"} for key in ARGUMENT_KEYS
    )


def _literals(field: Mapping[str, Any], key: str) -> list[str]:
    """Literals of a region's edge, without white space; of a pattern, the literal text that its matches begin with."""
    literals = field.get(key, [])
    if isinstance(pattern := field.get(f"{key}_pattern"), str):
        literals = _literal_prefix(pattern)
    listed = [literals] if isinstance(literals, str) else literals if isinstance(literals, list) else []
    return [literal.strip() for literal in listed if isinstance(literal, str) and literal.strip()]


def _literal_prefix(pattern: str) -> str:
    """Characters that every match of a pattern begins with, as far as that is plain to see."""
    if "|" in re.sub(r"\\.", "", pattern):
        return ""
    prefix, at = "", 0
    while found := _PLAIN.match(pattern, at):
        prefix += found[1] or found[0]
        at = found.end()
    return prefix
