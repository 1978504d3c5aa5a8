"""JSON schemas for measuring, different for each number. The shortest text of each has more tokens than a choice."""

from __future__ import annotations

from typing import Any

_FIELDS = 48
_KINDS: tuple[dict[str, Any], ...] = (
    {"type": "string", "maxLength": 40},
    {"type": "integer", "minimum": 0, "maximum": 100_000},
    {"enum": ["red", "green", "blue", "yellow"]},
    {"type": "array", "items": {"type": "number"}, "maxItems": 5},
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "ok": {"type": "boolean"}},
        "required": ["name", "ok"],
        "additionalProperties": False,
    },
)


def of_5_kb(number: int) -> dict[str, Any]:
    """Records of 48 fields of all kinds: about 5 KB."""
    return _records({f"field_{index}_of_schema_{number}": _KINDS[index % len(_KINDS)] for index in range(_FIELDS)})


def of_long_names(number: int) -> dict[str, Any]:
    """Records of long names and short values, as in extraction."""
    return _records({f"attribute_{index}_of_record_{number}": _KINDS[index % 2 + 1] for index in range(8)})


def of_texts(number: int) -> dict[str, Any]:
    """One list of texts: nothing but punctuation is forced."""
    return {"type": "array", "title": f"texts {number}", "items": {"type": "string", "minLength": 100}, "minItems": 50}


def _records(fields: dict[str, Any]) -> dict[str, Any]:
    item = {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}
    return {"type": "array", "items": item, "minItems": 50}
