"""Grammar text from what clients write: a JSON schema, a regular expression, a list of choices, a Lark grammar.

Pure. The texts are checked for their length only; ``isolated`` finds out whether they can be compiled.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

from mmserve.grammar.limits import MAX_EXPRESSION_CHARS, MAX_SOURCE_CHARS
from mmserve.runtime.errors import InvalidRequest, shortened

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

WHITESPACE = r"[ \n\t]{0,20}"
"""Between the parts of JSON. Unlimited, it is how small models never come to an end."""
_ANY_OBJECT = {"type": "object"}
_MAX_GBNF_CHARS = 8 * 1024
"""Converting it to Lark takes about 1.5 us for each character, on the event loop."""
_GBNF = re.compile(r"^\s*[A-Za-z0-9_-]+\s*::=", re.MULTILINE)


def json_schema_grammar(schema: dict[str, Any] | bool, param: str, whitespace: str = WHITESPACE) -> str:
    """The grammar of JSON texts that fit the schema. ``whitespace``: a pattern of what stands between its parts.

    Properties come in the schema's order, and one that is not required may be left out. oneOf counts as anyOf. Raises
    InvalidRequest for a schema that is too long or too deep.
    """
    text = _schema_text(schema, param)
    _check_length(whitespace, MAX_EXPRESSION_CHARS, param)
    try:
        return LLMatcher.grammar_from_json_schema("{}" if schema is True else text, overrides=_options(whitespace))
    except ValueError as error:
        raise InvalidRequest(f"{param} is not a JSON schema: {error}", param=param) from None


def json_schema_text(schema: dict[str, Any], param: str) -> str:
    """The same schema as JSON text for a part of a grammar. Raises InvalidRequest."""
    return _schema_text({**schema, "x-guidance": _options(WHITESPACE)}, param)


def _options(whitespace: str) -> JsonCompileOptions:
    return {"whitespace_pattern": whitespace, "coerce_one_of": True, "lenient": False}


def _schema_text(schema: dict[str, Any] | bool, param: str) -> str:
    try:
        text = msgspec.json.encode(schema).decode()
    except (RecursionError, ValueError) as error:
        raise InvalidRequest(f"{param} cannot be read: {error}", param=param) from None
    _check_length(text, MAX_SOURCE_CHARS, param)
    return text


def json_object_grammar(whitespace: str = WHITESPACE) -> str:
    """The grammar of all JSON objects."""
    return json_schema_grammar(_ANY_OBJECT, "", whitespace)


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


def lark_grammar(text: str, param: str) -> str:
    """A Lark grammar in llguidance's dialect, as the client wrote it, or made of one in GBNF (``root ::= ...``)."""
    _check_length(text, MAX_EXPRESSION_CHARS, param)
    if not text.strip():
        raise InvalidRequest(f"{param} is empty", param=param)
    return LLMatcher.grammar_from_lark(_lark_of_gbnf(text, param) if _is_gbnf(text) else text)


def _is_gbnf(text: str) -> bool:
    return not is_lark_syntax(text) and _GBNF.search(text) is not None


def _lark_of_gbnf(text: str, param: str) -> str:
    _check_length(text, _MAX_GBNF_CHARS, param)
    try:
        return gbnf_to_lark(text)
    except Exception as error:  # noqa: BLE001 - the library raises bare Exception for rules that are missing
        raise InvalidRequest(f"{param} cannot be read: {shortened(str(error), 200)}", param=param) from None


def _check_length(text: str, limit: int, param: str) -> None:
    if len(text) > limit:
        raise InvalidRequest(f"{param} has {len(text)} characters, more than {limit}", param=param)
