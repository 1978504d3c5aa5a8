"""``response_format`` of OpenAI's protocols: which grammar the answer must fit."""

from __future__ import annotations

from typing import Any

from mmserve.grammar.sources import json_object_grammar, json_schema_grammar
from mmserve.grammar.structural_tag import structural_tag_grammar
from mmserve.runtime.errors import InvalidRequest, quoted

_FIELD = "response_format"
_SCHEMA = f"{_FIELD}.json_schema.schema"


def response_grammar(response_format: Any) -> tuple[str, str]:
    """(grammar, the field that it comes from); empty texts if the answer is free. Raises InvalidRequest.

    A schema is enforced with and without ``strict``.
    """
    if response_format is None:
        return "", ""
    if not isinstance(response_format, dict):
        raise InvalidRequest(f"{_FIELD} must be an object", param=_FIELD)
    match response_format.get("type"):
        case "text":
            return "", ""
        case "json_object":
            return json_object_grammar(), _FIELD
        case "json_schema":
            return json_schema_grammar(_schema_of(response_format.get("json_schema")), _SCHEMA), _SCHEMA
        case "structural_tag":
            return structural_tag_grammar(response_format, _FIELD), _FIELD
        case other:
            found = "is missing" if other is None else f"cannot be {quoted(other)}"
            raise InvalidRequest(
                f"{_FIELD}.type {found}; it is text, json_object, json_schema or structural_tag", param=f"{_FIELD}.type"
            )


def _schema_of(json_schema: Any) -> dict[str, Any]:
    if not isinstance(json_schema, dict):
        raise InvalidRequest(f"{_FIELD}.json_schema must be an object", param=f"{_FIELD}.json_schema")
    for field, type_, name in (
        ("name", str, "a string"),
        ("description", str, "a string"),
        ("strict", bool, "a boolean"),
    ):
        if json_schema.get(field) is not None and not isinstance(json_schema[field], type_):
            param = f"{_FIELD}.json_schema.{field}"
            raise InvalidRequest(f"{param} must be {name}", param=param)
    schema = json_schema.get("schema")
    if not isinstance(schema, dict):
        raise InvalidRequest(f"{_SCHEMA} must be an object", param=_SCHEMA)
    return schema
