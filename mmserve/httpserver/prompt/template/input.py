"""The user's strings in what a chat template is given: messages, tools, documents and other variables.

Every string is the user's, wherever it stands and whether it is a value or a key, except for the words of the protocol
that templates look up or compare: names of fields and of JSON Schema's keywords, and fixed values of ``role`` and
``type``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mmserve.runtime.errors import InvalidRequest

MAX_DEPTH = 128
"""Of lists and objects within each other."""
_FIELDS = frozenset(
    "messages tools documents role content name type text image image_url input_image video tool_calls tool_call_id "
    "function arguments id index parameters description strict reasoning reasoning_content thinking title return "
    "returns response "
    # JSON Schema
    "$schema $id $ref $defs $comment definitions properties required enum const items prefixItems nullable default "
    "additionalProperties additionalItems patternProperties propertyNames examples format pattern minimum maximum "
    "exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength minItems maxItems uniqueItems contains "
    "minProperties maxProperties dependentRequired dependentSchemas anyOf oneOf allOf not if then else".split()
)
"""Names that stay as they are, unless they are a user's by their place."""
_OF_NAMES = frozenset("properties patternProperties $defs definitions dependentRequired dependentSchemas".split())
"""Fields whose value is an object with names that the user has chosen; below a name there are fields again."""
_OF_DATA = frozenset("arguments const default examples enum".split())
"""Fields below which everything is the user's."""
_DATA = "arguments"
_WORDS = {
    "role": frozenset("system developer user assistant tool function ipython".split()),
    "type": frozenset(
        "text image image_url input_image video function string number integer boolean array object null".split()
    ),
}
"""Values that templates compare, by field."""


def user_strings(value: Any) -> Iterator[str]:
    """All strings of the user in the input. Raises InvalidRequest if it is nested too deeply."""
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    with_user_strings(value, note)
    return iter(found)


def with_user_strings(value: Any, write: Callable[[str], str]) -> Any:
    """A copy in which ``write`` has replaced each string of the user.

    ``write`` must be a function of the text alone: equal names then stay equal, so that a template can still look them
    up. Raises InvalidRequest if the input is nested too deeply.
    """
    return _copy(value, write, "messages", MAX_DEPTH)


def _copy(value: Any, write: Callable[[str], str], field: str, depth: int) -> Any:
    """``field``: the one that the value belongs to."""
    if isinstance(value, str):
        return value if value in _WORDS.get(field, ()) else write(value)
    if not isinstance(value, dict | list | tuple):
        return value
    if not depth:
        raise InvalidRequest(f"lists and objects are nested more than {MAX_DEPTH} deep", param="messages")
    if not isinstance(value, dict):
        return [_copy(each, write, field, depth - 1) for each in value]
    if field in _OF_DATA:
        return {write(name): _copy(each, write, field, depth - 1) for name, each in value.items()}
    if field in _OF_NAMES:
        return {write(name): _copy(each, write, "parameters", depth - 1) for name, each in value.items()}
    return {
        name if name in _FIELDS else write(name): _copy(each, write, name if name in _FIELDS else _DATA, depth - 1)
        for name, each in value.items()
    }
