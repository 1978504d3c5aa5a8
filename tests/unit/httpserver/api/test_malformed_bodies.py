"""Malformed bodies of every protocol, made from the fields' types: each is a 4xx that names the field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from mmserve.httpserver.api.anthropic.messages import COUNT_TOKENS
from mmserve.httpserver.api.openai.errors import error_body
from mmserve.httpserver.api.openai.responses.parse import INPUT_TOKENS
from mmserve.httpserver.api.prompts.tokens import DETOKENIZE, TOKENIZE
from mmserve.httpserver.api.protocol import Protocol, parse_body
from mmserve.httpserver.app import PROTOCOLS
from mmserve.httpserver.served_model import ServedModel
from mmserve.runtime.errors import MmserveError
from tests.fakes.http.http_services import make_deployment

HI = [{"role": "user", "content": "hi"}]
MODEL = replace(
    ServedModel.of(make_deployment("/nowhere")), takes_tools=True, template_variables=frozenset({"enable_thinking"})
)
GOOD: dict[str, dict[str, Any]] = {
    "chat_completions": {"messages": HI},
    "completions": {"prompt": "hi"},
    "embeddings": {"input": "hi"},
    "responses": {"input": "hi"},
    "input_tokens": {"input": "hi"},
    "compact": {"input": "hi"},
    "messages": {"messages": HI, "max_tokens": 4},
    "count_tokens": {"messages": HI},
    "tokenize": {"prompt": "hi"},
    "detokenize": {"tokens": [104, 105]},
}
ALL = {protocol.name: protocol for protocol in (*PROTOCOLS, INPUT_TOKENS, COUNT_TOKENS, TOKENIZE, DETOKENIZE)}
SCALARS: list[Any] = [True, 0, -1, 5, 1.5, 1e300, 2**70, "", "x", "1", "x" * 9000]
VALUES = [*SCALARS, [], {}, *([one] for one in SCALARS), *({"a": one} for one in SCALARS), [[]], [{}], {"a": {}}]
READ_BY_HAND: dict[str, list[Any]] = {
    "messages": [5, "hi", {}, [], [5], [[]], [{}], [{"role": "user"}], [{"role": 5, "content": "a"}]],
    "input": [5, {}, [], [5], [{"type": "no such"}], [{"role": "user", "content": 5}], [{"type": "function_call"}]],
    "response_format": [5, "json", [], {}, {"type": 5}, {"type": "json_schema", "json_schema": 5}],
    "tool_choice": [5, "some", {}, {"type": "function"}, {"type": "no such"}],
    "function_call": [5, "some", {}],
    "audio": [5, {}, "x"],
    "prediction": [5, {}, "x"],
    "tools": [5, "some", {}, [5], [{}], [{"type": 5}], [{"name": 5}]],
    "system": [5, {}, [5], [{}], [{"type": "image"}], [{"type": "text", "text": 5}]],
    "mcp_servers": [5, "x", [{}], {"a": 1}],
    "container": [5, "x", {}, []],
    "schema": [5, "x", []],
    "format": [5, "x", [], {}, {"type": 5}, {"type": "json_schema"}],
}
"""Bad values of fields that have no type, because they are read by hand or refused whatever they hold."""
NEEDED_BESIDE = {"format": {"type": "json_schema"}, "tool_choice": {"type": "tool"}, "thinking": {"type": "enabled"}}
"""What an object must have before the bad value in it is looked at."""


def wrong_values(name: str, type_: Any) -> Iterator[Any]:
    """Values that the type does not admit, each alone."""
    for value in VALUES:
        try:
            msgspec.convert(value, type_)
        except msgspec.ValidationError:
            yield value


def structs_in(type_: msgspec.inspect.Type) -> list[type[msgspec.Struct]]:
    if isinstance(type_, msgspec.inspect.StructType):
        return [type_.cls]
    kinds = type_.types if isinstance(type_, msgspec.inspect.UnionType) else ()
    return [found for kind in kinds for found in structs_in(kind)]


def malformed(struct: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """(field, bad value) of all fields, those of the objects in them too, and of some that do not exist."""
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    types = {field.encode_name: field.type for field in msgspec.structs.fields(struct)}
    for field in info.fields:
        name = field.encode_name
        is_any = isinstance(field.type, msgspec.inspect.AnyType)
        values = READ_BY_HAND[name] if is_any else wrong_values(name, types[name])
        yield from ((name, value) for value in values)
        for inner in structs_in(field.type):
            beside = NEEDED_BESIDE.get(name, {})
            yield from ((name, beside | {key: value}) for key, value in malformed(inner))
    yield from ((f"no_such_field_{number}", value) for number, value in enumerate((1, "x", [], {}, True)))


def cases(protocol: Protocol[Any]) -> list[tuple[str, Any]]:
    unknown = [(f"unknown_{number}", value) for number, value in enumerate(VALUES * 5)]
    found = list(malformed(protocol.body_type))
    return found + unknown[: max(0, 200 - len(found))]


def refusal(protocol: Protocol[Any], body: dict[str, Any]) -> MmserveError:
    try:
        parse_body(protocol, json.dumps(body).encode(), MODEL, 0.0)
    except MmserveError as error:
        return error
    pytest.fail(f"{protocol.path} takes {str(body)[:300]}")


@pytest.mark.parametrize("name", ALL)
def test_each_of_200_malformed_bodies_is_refused_by_the_name_of_its_field(name: str) -> None:
    protocol, good = ALL[name], {"model": "stub"} | GOOD[name]
    parse_body(protocol, json.dumps(good).encode(), MODEL, 0.0)
    made = cases(protocol)
    assert len(made) >= 200
    assert {field for field, _ in made} >= {field.encode_name for field in msgspec.structs.fields(protocol.body_type)}
    for field, value in made:
        error = refusal(protocol, good | {field: value})
        assert 400 <= error.status < 500, (field, value)
        param = error.param or ""
        assert param == field or param.startswith((f"{field}.", f"{field}[")), (field, value, param, error.message)
        assert json.loads(error_body(error))["error"]["param"] == param


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("body", [b"", b"{", b"5", b"[]", b'"x"', b"null", b"\xff", b'{"a":1}{}', b"[" * 2000])
def test_a_body_that_is_no_object_is_refused(name: str, body: bytes) -> None:
    with pytest.raises(MmserveError) as refused:
        parse_body(ALL[name], body, MODEL, 0.0)
    assert 400 <= refused.value.status < 500


@pytest.mark.parametrize("name", ALL)
def test_null_is_the_same_as_absent(name: str) -> None:
    protocol, good = ALL[name], {"model": "stub"} | GOOD[name]
    fields = {field.encode_name for field in msgspec.structs.fields(protocol.body_type)}
    parse_body(protocol, json.dumps(dict.fromkeys(fields) | good).encode(), MODEL, 0.0)


@pytest.mark.parametrize("name", ["chat_completions", "completions", "responses"])
@pytest.mark.parametrize("model", [{}, {"model": None}, {"model": ""}])
def test_a_request_without_a_model_is_refused(name: str, model: dict[str, Any]) -> None:
    error = refusal(ALL[name], GOOD[name] | model)
    assert (error.status, error.param, error.message) == (400, "model", "you must provide a model parameter")


def test_every_protocol_is_here() -> None:
    assert set(GOOD) == set(ALL)
