"""What bare text means by a tool's schema."""

from __future__ import annotations

import pytest

from mmserve.httpserver.output.parsing.layouts.schema_types import declared_types, json_value


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("007", ("string",), '"007"'),
        ("7", ("string",), '"7"'),
        ("7", ("integer",), "7"),
        ("7", ("number",), "7"),
        ("7.5", ("integer",), '"7.5"'),
        ("007", ("integer",), '"007"'),
        ("NaN", ("number",), '"NaN"'),
        (" [1, 2] ", ("array",), "[1, 2]"),
        ("False", ("boolean",), "false"),
        ("null", ("string", "null"), "null"),
        ("null", ("string",), '"null"'),
        ("null", ("integer",), '"null"'),
        ("7", ("integer", "string"), "7"),
        ("7", ("string", "integer"), '"7"'),
        ('{"a": 1}', ("string", "object"), '{"a": 1}'),
        ("7", (), "7"),
        ('é "', (), '"é \\""'),
        ("[" * 5000, ("array",), '"' + "[" * 5000 + '"'),
    ],
)
def test_text_becomes_json_of_a_type_that_the_schema_allows(text: str, types: tuple[str, ...], expected: str) -> None:
    assert json_value(text, types) == expected


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "integer"}, ("integer",)),
        ({"type": ["array", "null"]}, ("array", "null")),
        ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/x"}]}, ("string", "object")),
        ({"enum": [1, "a", None]}, ("integer", "string", "null")),
        ({"const": True}, ("boolean",)),
        ({"$ref": "#/$defs/loop"}, ()),
        ({"$ref": "http://x"}, ()),
        ({}, ()),
        (True, ()),
    ],
)
def test_types_that_a_schema_names(schema: object, types: tuple[str, ...]) -> None:
    defs = {"x": {"type": "object"}, "loop": {"$ref": "#/$defs/loop"}}
    assert declared_types({"properties": {"k": schema}, "$defs": defs}, "k") == types


@pytest.mark.parametrize("schema", [{}, {"properties": []}, None, {"properties": {"other": {"type": "integer"}}}])
def test_an_argument_that_the_schema_does_not_name_is_a_string(schema: object) -> None:
    assert declared_types(schema, "k") == ("string",)
