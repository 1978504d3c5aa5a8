"""Grammar text from what clients write: a JSON schema, a regular expression, a list of choices, a Lark grammar.

Pure. The texts are checked for their length only; ``isolated`` finds out whether they can be compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from llguidance import LLMatcher

from mmserve.grammar.limits import MAX_EXPRESSION_CHARS, MAX_SOURCE_CHARS
from mmserve.runtime.errors import InvalidRequest

_WHITESPACE = r"[ \n\t]{0,20}"
"""Between the parts of JSON. Unlimited, it is how small models never come to an end."""
_ANY_OBJECT = {"type": "object"}


def json_schema_grammar(schema: dict[str, Any] | bool, param: str) -> str:
    """The grammar of JSON texts that fit the schema.

    Properties come in the schema's order, and one that is not required may be left out. oneOf counts as anyOf. Raises
    InvalidRequest for a schema that is too long or too deep.
    """
    try:
        text = msgspec.json.encode(schema).decode()
    except (RecursionError, ValueError) as error:
        raise InvalidRequest(f"{param} cannot be read: {error}", param=param) from None
    _check_length(text, MAX_SOURCE_CHARS, param)
    try:
        return LLMatcher.grammar_from_json_schema(
            "{}" if schema is True else text,
            overrides={"whitespace_pattern": _WHITESPACE, "coerce_one_of": True, "lenient": False},
        )
    except ValueError as error:
        raise InvalidRequest(f"{param} is not a JSON schema: {error}", param=param) from None


def json_object_grammar() -> str:
    """The grammar of all JSON objects."""
    return json_schema_grammar(_ANY_OBJECT, "")


def regex_grammar(regex: str, param: str) -> str:
    """The grammar of texts that the whole expression (Rust's syntax, without look-around) matches."""
    _check_length(regex, MAX_EXPRESSION_CHARS, param)
    return LLMatcher.grammar_from_regex(regex)


def choice_grammar(choices: Sequence[str], param: str) -> str:
    """The grammar of exactly these texts. Raises InvalidRequest if there are none or one is empty."""
    if not choices or not all(choices):
        raise InvalidRequest(f"{param} must be a list of texts that are not empty", param=param)
    _check_length("".join(choices), MAX_SOURCE_CHARS, param)
    return lark_of_choices(choices)


def lark_of_choices(choices: Sequence[str]) -> str:
    """One rule with the choices as alternatives, each a literal."""
    literals = (msgspec.json.encode(choice).decode() for choice in dict.fromkeys(choices))
    return "start: " + " | ".join(literals)


def lark_grammar(lark: str, param: str) -> str:
    """A Lark grammar in llguidance's dialect, as the client wrote it."""
    _check_length(lark, MAX_EXPRESSION_CHARS, param)
    if not lark.strip():
        raise InvalidRequest(f"{param} is empty", param=param)
    return LLMatcher.grammar_from_lark(lark)


def _check_length(text: str, limit: int, param: str) -> None:
    if len(text) > limit:
        raise InvalidRequest(f"{param} has {len(text)} characters, more than {limit}", param=param)
