"""Which grammar an answer must fit: ``response_format``, vLLM's ``structured_outputs`` and its older guided fields."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from mmserve.grammar.sources import (
    WHITESPACE,
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from mmserve.grammar.structural_tag import structural_tag_grammar
from mmserve.httpserver.api.openai.fields import GrammarFields, StructuredOutputs
from mmserve.httpserver.api.openai.response_format import response_grammar
from mmserve.runtime.errors import InvalidRequest, quoted

_BACKENDS = ("auto", "guidance", "llguidance")
"""Values of ``guided_decoding_backend`` that name the library in use."""


class _Constraint(NamedTuple):
    """One field that asks for a form of answer. ``kind``: the name in ``structured_outputs``."""

    kind: str
    param: str
    value: Any


def requested_grammar(fields: GrammarFields) -> tuple[str, str]:
    """(grammar, the field that it comes from); empty texts if the answer is free. Raises InvalidRequest."""
    if fields.guided_decoding_backend not in (None, *_BACKENDS):
        raise InvalidRequest(
            f"there is no backend {quoted(fields.guided_decoding_backend)}: grammars are llguidance's",
            param="guided_decoding_backend",
        )
    grammar, param = response_grammar(fields.response_format)
    given = list(_constraints(fields))
    if len(given) + bool(grammar) > 1:
        other = param or given[0].param
        raise InvalidRequest(f"{given[-1].param} and {other} cannot both be given", param=given[-1].param)
    whitespace, whitespace_param = _whitespace(fields)
    if whitespace is not None and not (given and given[0].kind in ("json", "json_object")):
        raise InvalidRequest("a pattern of whitespace needs a JSON schema beside it", param=whitespace_param)
    if not given:
        return grammar, param
    return _grammar(given[0], WHITESPACE if whitespace is None else whitespace), given[0].param


def _constraints(fields: GrammarFields) -> Iterator[_Constraint]:
    older = (
        ("json", "guided_json", fields.guided_json),
        ("regex", "guided_regex", fields.guided_regex),
        ("choice", "guided_choice", fields.guided_choice),
        ("grammar", "guided_grammar", fields.guided_grammar),
    )
    for kind, param, value in (*_structured_outputs(fields.structured_outputs), *older):
        if value is not None:
            yield _Constraint(kind, param, value)


def _structured_outputs(new: StructuredOutputs | None) -> tuple[tuple[str, str, Any], ...]:
    if new is None:
        return ()
    return (
        ("json", "structured_outputs.json", new.json),
        ("regex", "structured_outputs.regex", new.regex),
        ("choice", "structured_outputs.choice", new.choice),
        ("grammar", "structured_outputs.grammar", new.grammar),
        ("json_object", "structured_outputs.json_object", new.json_object or None),
        ("structural_tag", "structured_outputs.structural_tag", new.structural_tag),
    )


def _whitespace(fields: GrammarFields) -> tuple[str | None, str]:
    """The pattern between the parts of JSON and its field."""
    new = fields.structured_outputs
    if new is not None and new.whitespace_pattern is not None:
        return new.whitespace_pattern, "structured_outputs.whitespace_pattern"
    return fields.guided_whitespace_pattern, "guided_whitespace_pattern"


def _grammar(constraint: _Constraint, whitespace: str) -> str:
    kind, param, value = constraint
    match kind:
        case "json":
            schema = decoded(value, param)
            if not isinstance(schema, (dict, bool)):
                raise InvalidRequest(f"{param} must be an object", param=param)
            return json_schema_grammar(schema, param, whitespace)
        case "json_object":
            return json_object_grammar(whitespace)
        case "regex":
            return regex_grammar(value, param)
        case "choice":
            return choice_grammar(value, param)
        case "grammar":
            return lark_grammar(value, param)
        case _:
            return structural_tag_grammar(decoded(value, param), param)


def decoded(value: Any, param: str) -> Any:
    """``value``, or what it says if it is JSON text. Raises InvalidRequest."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidRequest(f"{param} is not JSON: {error}", param=param) from None
