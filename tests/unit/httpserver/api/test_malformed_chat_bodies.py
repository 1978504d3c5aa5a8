"""Malformed chat completions, made from the fields' types: each is refused with a 4xx that names the field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from mmserve.httpserver.api.openai.chat import CHAT
from mmserve.httpserver.api.openai.fields import ChatRequest
from mmserve.httpserver.api.protocol import parse_body
from mmserve.httpserver.served_model import ServedModel
from mmserve.runtime.errors import MmserveError
from tests.fakes.http_services import make_deployment

USER = {"role": "user", "content": "hi"}
MODEL = ServedModel.of(make_deployment("/nowhere"))
ANY = {
    "messages": [5, "hi", {}, [5], [[]]],
    "response_format": [5, "json", [], {}, {"type": 5}, {"type": "json_schema", "json_schema": 5}],
    "tool_choice": [5, "some", {}, {"type": "function"}],
    "function_call": [5, "some", {}],
    "audio": [5, {}, "x"],
    "prediction": [5, {}, "x"],
}
"""Bad values of fields that are read by hand, or refused whatever they hold."""
FREE_OBJECTS = {"metadata", "prompt_cache_options", "guided_json", "json", "structural_tag", "chat_template_kwargs"}
"""Objects whose own keys have no type here."""
Malformed = tuple[str, Any]
"""The field, and a bad value."""


def bad_values(info: inspect.Type) -> Iterator[Any]:
    """Values that the type does not admit."""
    if isinstance(info, inspect.UnionType):
        kinds = info.types
        yield from (
            value for kind in kinds for value in bad_values(kind) if not any(admits(one, value) for one in kinds)
        )
        return
    match info:
        case inspect.IntType() | inspect.FloatType():
            yield from ("1", True, [1], {"a": 1})
            yield from [] if isinstance(info, inspect.FloatType) else [1.5]
            yield from (info.ge - 1,) if info.ge is not None else ()
            yield from (info.gt,) if info.gt is not None else ()
            yield from (info.le + 1,) if info.le is not None else ()
        case inspect.StrType():
            yield from (5, True, ["a"], {"a": "b"})
            yield from ("",) if info.min_length or info.pattern else ()
            yield from ("x" * (info.max_length + 1),) if info.max_length else ()
        case inspect.BoolType():
            yield from (1, "true", [True], {"a": True})
        case inspect.LiteralType():
            yield from (5, "something else", [], {})
        case inspect.ListType():
            yield from (5, "a", {"a": 1})
            yield from ([bad] for bad in bad_values(info.item_type))
        case inspect.DictType():
            yield from (5, "a", [1])
            yield from ({"a": bad} for bad in bad_values(info.value_type))
        case inspect.StructType():
            yield from (5, "a", [1], {"no_such_field": 1})


def admits(info: inspect.Type, value: Any) -> bool:
    match info:
        case inspect.NoneType():
            return value is None
        case inspect.AnyType():
            return True
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.DictType():
            return isinstance(value, dict) and isinstance(info.value_type, inspect.AnyType)
        case inspect.StrType():
            return isinstance(value, str) and bool(value) and len(value) <= (info.max_length or len(value))
        case inspect.ListType():
            return isinstance(value, list) and all(admits(info.item_type, item) for item in value)
        case _:
            return False


def malformed(struct: type[msgspec.Struct]) -> Iterator[Malformed]:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    for field in info.fields:
        values = ANY.get(field.encode_name) or bad_values(field.type)
        yield from ((field.encode_name, value) for value in values)
        for kind in field.type.types if isinstance(field.type, inspect.UnionType) else ():
            if isinstance(kind, inspect.StructType):
                yield from ((field.encode_name, {name: value}) for name, value in malformed(kind.cls))


CASES = [
    *malformed(ChatRequest),
    *(
        ("messages", [{**USER, "content": [part]}])
        for part in (5, {}, {"type": "text", "text": 5}, {"type": "image_url"})
    ),
    *(("messages", [message]) for message in ({"role": "user"}, {**USER, "role": 5}, {**USER, "no_such_field": 1})),
    *((f"no_such_field_{number}", value) for number, value in enumerate((1, "x", [], {}, True))),
]


def refusal(body: dict[str, Any]) -> MmserveError:
    with pytest.raises(MmserveError) as refused:
        parse_body(CHAT, json.dumps(body).encode(), MODEL, 0.0)
    return refused.value


def test_there_are_hundreds() -> None:
    assert len(CASES) >= 200
    assert {name for name, _ in CASES} >= {field.encode_name for field in msgspec.structs.fields(ChatRequest)}


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in CASES))
def test_a_malformed_body_is_refused_by_the_name_of_its_field(name: str) -> None:
    for value in [value for field, value in CASES if field == name]:
        error = refusal({"messages": [USER], name: value})
        assert 400 <= error.status < 500, value
        param = error.param or ""
        assert param == name or param.startswith((f"{name}.", f"{name}[")), (value, error.param, error.message)
