"""The smallest bodies that routes answer: none of their fields can be left out. For the OpenAPI document."""

from __future__ import annotations

from typing import Any

MODEL = "MODEL"
"""Stands for the served name."""
_MESSAGES = [{"role": "user", "content": "Hello"}]
SMALLEST_BODIES: dict[str, tuple[dict[str, Any], ...]] = {
    "/v1/chat/completions": ({"model": MODEL, "messages": _MESSAGES},),
    "/v1/chat/completions/render": ({"model": MODEL, "messages": _MESSAGES},),
    "/v1/completions/render": ({"model": MODEL, "prompt": "Hello"},),
    "/v1/completions": ({"model": MODEL, "prompt": "Hello"},),
    "/v1/embeddings": ({"input": "Hello"}, {"messages": _MESSAGES}),
    "/v1/messages": ({"model": MODEL, "max_tokens": 16, "messages": _MESSAGES},),
    "/v1/messages/count_tokens": ({"model": MODEL, "messages": _MESSAGES},),
    "/v1/responses": ({"model": MODEL, "input": "Hello"},),
    "/v1/responses/compact": ({"model": MODEL, "input": "Hello"},),
    "/v1/responses/input_tokens": ({"model": MODEL, "input": "Hello"},),
    "/tokenize": ({"prompt": "Hello"}, {"model": MODEL, "messages": _MESSAGES}),
    "/detokenize": ({"tokens": [1]},),
}
"""Path -> one body, or alternatives."""
OPTIONAL = {"/v1/completions": {"prompt"}, "/v1/completions/render": {"prompt"}, "/v1/responses/compact": {"input"}}
"""Fields of these that may be left out. No prompt is the empty one, which is a prompt for some models only. What is
compacted may be a stored response."""

_OBJECTS = {"type": "array", "minItems": 1, "items": {"type": "object"}}
_PARTS = {"type": "array", "items": {"type": "object", "required": ["type"]}}
_MESSAGE = {
    "type": "object",
    "required": ["role"],
    "properties": {"role": {"type": "string"}, "content": {"anyOf": [{"type": "string"}, _PARTS, {"type": "null"}]}},
}
SHAPES: dict[str, dict[str, Any]] = {
    "messages": {"anyOf": [{"type": "array", "minItems": 1, "items": _MESSAGE}, {"type": "null"}]},
    "input": {"anyOf": [{"type": "string"}, _OBJECTS, {"type": "null"}]},
}
"""Fields that are read by hand, so that their structs only say ``Any``."""


def with_smallest(schema: dict[str, Any], path: str) -> dict[str, Any]:
    """The schema of a path's body, which also says what its struct does not: shapes, and what a body must have."""
    properties = {name: value or SHAPES.get(name, value) for name, value in schema.get("properties", {}).items()}
    bodies, optional = SMALLEST_BODIES.get(path, ()), OPTIONAL.get(path, set())
    needed = [{"required": [name for name in body if name not in optional]} for body in bodies]
    alternatives = {"anyOf": needed} if len(needed) > 1 else needed[0] if needed else {}
    return {**schema, "properties": properties, **alternatives}


def examples(path: str) -> dict[str, Any]:
    """OpenAPI's ``examples`` of a path's body, for ``name_model``."""
    return {f"smallest {number}": {"value": body} for number, body in enumerate(SMALLEST_BODIES.get(path, ()))}


def name_model(operation: dict[str, Any], name: str) -> None:
    """Put the served name into the examples of an operation."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    for example in content.get("examples", {}).values():
        if example["value"].get("model") == MODEL:
            example["value"] = {**example["value"], "model": name}
