"""The OpenAPI document's part of each route, from the structs that read its bodies and make its answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI
from starlette.requests import Request
from starlette.responses import Response

from mmserve.httpserver.api.anthropic.errors import ErrorAnswer as AnthropicError
from mmserve.httpserver.api.openai.errors import ErrorAnswer as OpenAiError
from mmserve.httpserver.api.protocol import Parsed, Protocol
from mmserve.httpserver.api.smallest_bodies import examples, name_model, with_smallest

ANY_ROUTE = (400, 401, 403, 500, 503)
"""Statuses of errors that every route may answer with."""
NAMED = (*ANY_ROUTE, 404, 429, 529)
"""Those of a route whose path names something that is looked up."""
WITH_BODY = (*NAMED, 408, 413, 415, 504)
"""Those of a route that reads a body and, for most, waits for an answer."""
_MEANINGS = {
    400: "The request is wrong; the error names the field",
    401: "The API key is missing or wrong",
    403: "The API key does not open this path, or a web page of another site sent the request",
    404: "The model, or what the path names, is not here",
    408: "The body did not arrive in time",
    413: "The body, an image or the request exceeds a limit",
    415: "The body is not said to be JSON",
    429: "The queue is full",
    500: "The server failed",
    503: "The server is not ready, or resources did not become free in time",
    504: "The request's time is over",
    529: "The queue is full, in the form of Anthropic's API",
}
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}
"""Ways to send an API key. A server without keys takes any request."""
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
        responses=answers(protocol.answer_type, WITH_BODY, streams=protocol.streams),
        openapi_extra={"requestBody": request_body(protocol.body_type, protocol.path)},
    )


def describe(app: FastAPI, model_name: str) -> None:
    """Make the app's document of its routes: without FastAPI's own errors of validation, with ways to send a key, and
    with the name of the served model in its examples."""
    documented = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = documented()
            for operations in made["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
                    name_model(operation, model_name)
            made["components"] = {"securitySchemes": _KEYS}
            made["security"] = [{name: []} for name in _KEYS] + [{}]
        return app.openapi_schema or {}

    app.openapi = document  # type: ignore[method-assign]


def request_body(type_: Any, path: str) -> dict[str, Any]:
    """The JSON body of a path, which is read as ``type_``."""
    content = {"schema": with_smallest(schema_of(type_), path), "examples": examples(path)}
    return {"required": True, "content": {"application/json": content}}


def query(**parameters: Any) -> dict[str, Any]:
    """FastAPI's ``openapi_extra`` of a route that takes these parameters in its query, each of them optional."""
    schemas = {name: schema_of(type_) for name, type_ in parameters.items()}
    return {"parameters": [{"name": name, "in": "query", "schema": schema} for name, schema in schemas.items()]}


def answers(
    type_: Any, statuses: Iterable[int] = ANY_ROUTE, *, streams: bool = False
) -> dict[int | str, dict[str, Any]]:
    """FastAPI's ``responses``: JSON of ``type_``, or an error with one of these statuses."""
    content: dict[str, Any] = {"application/json": {"schema": schema_of(type_)}}
    if streams:
        content["text/event-stream"] = _STREAM
    return {200: {"description": "The answer", "content": content}, **errors(statuses)}


def errors(statuses: Iterable[int] = ANY_ROUTE) -> dict[int | str, dict[str, Any]]:
    """FastAPI's ``responses`` of a route's errors, in the form of one protocol or the other."""
    schema = {"anyOf": [schema_of(OpenAiError), schema_of(AnthropicError)]}
    content = {"application/json": {"schema": schema}}
    return {status: {"description": _MEANINGS[status], "content": content} for status in sorted(statuses)}


def schema_of(type_: Any) -> dict[str, Any]:
    """The JSON schema of a struct, with references inlined."""
    (schema,), components = msgspec.json.schema_components([type_], schema_hook=_any_value, ref_template="#/{name}")
    inlined: dict[str, Any] = _inlined(schema, components)
    return inlined


def _any_value(type_: type) -> dict[str, Any]:
    """msgspec has no schema for ``object``, which stands for any value."""
    if type_ is not object:
        raise NotImplementedError  # tells msgspec that this hook does not know the type either
    return {"description": "any value"}


def _inlined(node: Any, components: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inlined(item, components) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        return _inlined(components[node["$ref"].removeprefix("#/")], components)
    return {key: _inlined(value, components) for key, value in node.items() if key != "discriminator"}
