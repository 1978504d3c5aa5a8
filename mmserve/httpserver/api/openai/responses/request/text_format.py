"""``text.format`` of a Responses request: which grammar the answer must fit."""

from __future__ import annotations

from typing import Any

from mmserve.grammar.sources import json_object_grammar, json_schema_grammar
from mmserve.runtime.errors import InvalidRequest, quoted

_FIELD = "text.format"
_OPTIONAL = (("name", str, "a string"), ("description", str, "a string"), ("strict", bool, "a boolean"))


def format_grammar(text_format: Any) -> tuple[str, str]:
    """(grammar, the field that it comes from); empty texts if the answer is free. Raises InvalidRequest.

    A schema is enforced with and without ``strict``. Unlike in chat completions it stands beside its name.
    """
    if text_format is None:
        return "", ""
    if not isinstance(text_format, dict):
        raise InvalidRequest(f"{_FIELD} must be an object", param=_FIELD)
    match text_format.get("type"):
        case "text":
            return "", ""
        case "json_object":
            return json_object_grammar(), _FIELD
        case "json_schema":
            param = f"{_FIELD}.schema"
            return json_schema_grammar(_schema_of(text_format), param), param
        case other:
            found = "is missing" if other is None else f"cannot be {quoted(other)}"
            raise InvalidRequest(
                f"{_FIELD}.type {found}; it is text, json_object or json_schema", param=f"{_FIELD}.type"
            )


def _schema_of(text_format: dict[str, Any]) -> dict[str, Any]:
    for field, type_, name in _OPTIONAL:
        if text_format.get(field) is not None and not isinstance(text_format[field], type_):
            raise InvalidRequest(f"{_FIELD}.{field} must be {name}", param=f"{_FIELD}.{field}")
    schema = text_format.get("schema")
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{_FIELD}.schema must be an object", param=f"{_FIELD}.schema")
    return schema
