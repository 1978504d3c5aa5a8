"""What a tool's schema says about an argument that is written as bare text. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

STRING = ("string",)
_MAX_DEPTH = 8
_KINDS: dict[str, type | tuple[type, ...]] = {
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "object": dict,
    "array": list,
    "null": type(None),
}
_PYTHON_NAMES = {"True": "true", "False": "false", "None": "null"}


def declared_types(schema: object, key: str) -> tuple[str, ...]:
    """JSON types that the argument ``key`` may have, in the order of the schema. Empty: any. Unknown keys: a string."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping) or key not in properties:
        return STRING
    return tuple(dict.fromkeys(_types(properties[key], schema, _MAX_DEPTH)))


def json_value(text: str, types: tuple[str, ...]) -> str:
    """The JSON of an argument written as ``text``: as one of ``types`` if it reads as one, otherwise a string."""
    bare = _PYTHON_NAMES.get(text.strip(), text.strip())
    if types == STRING or not (kind := _kind(bare)):
        return json.dumps(text, ensure_ascii=False)
    if kind == "null" or "string" not in types:
        fits = not types or kind in types or (kind == "integer" and "number" in types)
    else:  # of two that fit, the first counts
        others = [
            name for name in types[: types.index("string")] if name == kind or (name, kind) == ("number", "integer")
        ]
        fits = bool(others) or (kind in types and kind in ("object", "array"))
    return bare if fits and (kind != "null" or not types or "null" in types) else json.dumps(text, ensure_ascii=False)


def _types(schema: object, root: object, depth: int) -> list[str]:
    """Types that a schema names, also through references and alternatives."""
    if not isinstance(schema, Mapping) or depth == 0:
        return []
    if isinstance(reference := schema.get("$ref"), str):
        return _types(_resolve(reference, root), root, depth - 1)
    named = schema.get("type")
    if isinstance(named, str):
        return [named]
    if isinstance(named, list):
        return [name for name in named if isinstance(name, str)]
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    if values:
        return [_kind(msgspec.json.encode(value).decode()) or "string" for value in values]
    choices: list[Any] = [choice for key in ("anyOf", "oneOf", "allOf") for choice in schema.get(key) or ()]
    return [name for choice in choices for name in _types(choice, root, depth - 1)]


def _resolve(reference: str, root: object) -> object:
    """What a reference within the schema means; None if nothing."""
    if not reference.startswith("#/"):
        return None
    for step in reference[2:].split("/"):
        if not isinstance(root, Mapping):
            return None
        root = root.get(step.replace("~1", "/").replace("~0", "~"))
    return root


def _kind(text: str) -> str:
    """JSON type of a text other than a string's; "" if it is no JSON or a string."""
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return ""
    return next((name for name, types in _KINDS.items() if isinstance(value, types)), "")
