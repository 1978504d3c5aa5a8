"""The OpenAPI document's part of each route, from the structs that read its bodies and make its answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import Response

from mmserve.httpserver.api.anthropic.errors import ErrorAnswer as AnthropicError
from mmserve.httpserver.api.openai.errors import ErrorAnswer as OpenAiError
from mmserve.httpserver.api.protocol import Parsed, Protocol

_STREAM = {"schema": {"type": "string", "description": "Server-sent events, if the body has ``stream: true``."}}


def add_protocol_route(
    router: FastAPI | APIRouter,
    protocol: Protocol[Parsed],
    endpoint: Callable[[Request], Awaitable[Response]],
    tag: str,
) -> None:
    """Add a POST route with the schemas of its body, its answers and its errors."""
    router.add_api_route(
        protocol.path,
        endpoint,
        methods=["POST"],
        name=protocol.name,
        description=protocol.description,
        tags=[tag],
        response_class=Response,
        responses=answers(protocol.answer_type, streams=protocol.streams),
        openapi_extra={"requestBody": request_body(protocol.body_type)},
    )


def request_body(type_: Any) -> dict[str, Any]:
    """A JSON body that is read as ``type_``."""
    return {"required": True, "content": {"application/json": {"schema": schema_of(type_)}}}


def answers(type_: Any, *, streams: bool = False, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """FastAPI's ``responses``: JSON of ``type_`` with this status; every other status is an error."""
    content: dict[str, Any] = {"application/json": {"schema": schema_of(type_)}}
    if streams:
        content["text/event-stream"] = _STREAM
    return {status: {"description": "The answer", "content": content}, **errors()}


def errors() -> dict[int | str, dict[str, Any]]:
    """What every route may answer in place of its own answer, with the status of the error."""
    schema = {"anyOf": [schema_of(OpenAiError), schema_of(AnthropicError)]}
    return {"default": {"description": "An error", "content": {"application/json": {"schema": schema}}}}


def schema_of(type_: Any) -> dict[str, Any]:
    """The JSON schema of a struct, with references inlined."""
    (schema,), components = msgspec.json.schema_components([type_], schema_hook=_any_value, ref_template="#/{name}")
    inlined: dict[str, Any] = _inlined(schema, components)
    return inlined


def _any_value(type_: type) -> dict[str, Any]:
    """msgspec has no schema for ``object``, which stands for any value."""
    if type_ is not object:
        raise NotImplementedError
    return {"description": "any value"}


def _inlined(node: Any, components: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inlined(item, components) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(components[node["$ref"].removeprefix("#/")], components)
    return {key: _inlined(value, components) for key, value in node.items() if key != "discriminator"}
