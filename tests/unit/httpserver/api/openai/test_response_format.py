"""``response_format``: what becomes a grammar, what is refused, and which field is named."""

from __future__ import annotations

from typing import Any

import pytest

from mmserve.grammar.sources import json_object_grammar
from mmserve.httpserver.api.openai.response_format import response_grammar
from mmserve.runtime.errors import InvalidRequest
from tests.fakes.ranks.grammars import JSON, SCHEMA


@pytest.mark.parametrize("free", [None, {"type": "text"}])
def test_free_text_has_no_grammar(free: Any) -> None:
    assert response_grammar(free) == ("", "")


def test_any_object() -> None:
    assert response_grammar({"type": "json_object"}) == (json_object_grammar(), "response_format")


@pytest.mark.parametrize("strict", [None, True, False])
def test_a_schema_is_enforced_whether_strict_or_not(strict: bool | None) -> None:
    schema = {"name": "x", "description": None, "schema": SCHEMA, "strict": strict}
    grammar, param = response_grammar({"type": "json_schema", "json_schema": schema})
    assert (grammar, param) == (JSON, "response_format.json_schema.schema")


@pytest.mark.parametrize(
    ("response_format", "param"),
    [
        ("json", "response_format"),
        ({}, "response_format.type"),
        ({"type": "xml"}, "response_format.type"),
        ({"type": ["json_object"]}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": []}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": "{}"}}, "response_format.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "strict": "yes"}}, "response_format.json_schema.strict"),
        ({"type": "json_schema", "json_schema": {"schema": {}, "name": 5}}, "response_format.json_schema.name"),
    ],
)
def test_a_wrong_format_is_refused_by_field(response_format: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        response_grammar(response_format)
    assert refused.value.param == param
