"""Rules for arguments that are not written as JSON: in Python, in tags, and in Gemma's notation. Pure."""

from __future__ import annotations

import json
import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mmserve.httpserver.output.parsing.grammar.rules import ANYTHING, Rules, one_of, quoted
from mmserve.httpserver.output.parsing.layouts.schema_types import declared_types

INTEGER = r"/-?(0|[1-9][0-9]{0,18})/"
NUMBER = r"/-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,18})?([eE][+-]?[0-9]{1,2})?/"
NEW_LINE = "\n"
PYTHON_STRING = r'/"([^"\\\x00-\x1f\x7f]|\\["\\nt])*"/'


def arguments(
    rules: Rules, prefix: str, schema: Mapping[str, Any], separator: str, argument: Callable[[str], str]
) -> str:
    """A rule for the properties of ``schema`` in their order; those that are not required may be left out.

    ``argument(name)``: the expression of one. Two rules for each property: is it the first that is written, or not?
    Raises ValueError if the schema names a required property that it does not describe.
    """
    properties = _properties(schema)
    named = schema.get("required", [])
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise ValueError("the required arguments of a tool must be a list of names")
    required = frozenset(named)
    if missing := required - properties.keys():
        raise ValueError(f"required argument {sorted(missing)[0]!r} is not among the properties")
    names = list(properties)
    for index in range(len(names), -1, -1):
        for kind, before in (("first", ""), ("more", f"{quoted(separator)} " if separator else "")):
            name = f"{prefix}_{kind}_{index}"
            if index == len(names):
                rules.add(name, '""')
                continue
            written = f"{before}{argument(names[index])} {prefix}_more_{index + 1}"
            skipped = [] if names[index] in required else [f"{prefix}_{kind}_{index + 1}"]
            rules.add(name, one_of([written, *skipped]))
    return f"{prefix}_first_0"


def python_argument(rules: Rules, schema: Mapping[str, Any]) -> Callable[[str], str]:
    def expression(name: str) -> str:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise ValueError(f"argument {name!r} cannot be written in this model's format of calls")
        value = _choice(schema, name, _python_enum, lambda kind: python_value(rules, kind))
        return f"{quoted(name + '=')} {value}"

    return expression


def gemma_argument(rules: Rules, schema: Mapping[str, Any], quote: str) -> Callable[[str], str]:
    def expression(name: str) -> str:
        if not name.replace("_", "").isalnum():
            raise ValueError(f"argument {name!r} cannot be written in this model's format of calls")
        value = _choice(schema, name, lambda given: _gemma_enum(rules, given, quote), lambda k: _gemma(rules, k, quote))
        return f"{quoted(name + ':')} {value}"

    return expression


def tag_argument(rules: Rules, schema: Mapping[str, Any], prefix: str, open: str, close: str) -> Callable[[str], str]:
    """A value between tags: raw text of a string, JSON of any other type."""

    def expression(name: str) -> str:
        if any(char.isspace() or char in "<>=" for char in name):
            raise ValueError(f"argument {name!r} cannot be written in this model's format of calls")
        end = f"\n{close}\n"
        given = _properties(schema)[name]
        types = declared_types(schema, name)
        head = rules.literal(f"{open}{name}>\n")
        if isinstance(given, Mapping) and _strings(given):
            return f"{head} ({one_of([quoted(value) for value in _strings(given)])}) {rules.literal(end)}"
        if (not types or "string" in types) and rules.is_token(close):
            return f"{head} {rules.add('TEXT', ANYTHING)} {rules.literal(close)} {quoted(NEW_LINE)}"
        if not types or "string" in types:
            return f"{head} {rules.add(f'{prefix}_text', ANYTHING, '[suffix=' + quoted(end) + ']')}"
        definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        return f"{head} {rules.json({**definitions, **given})} {rules.literal(end)}"

    return expression


def python_value(rules: Rules, kind: str) -> str:
    """A rule for a Python literal of a JSON type; of any type if ``kind`` is empty."""
    rules.add("py_string", PYTHON_STRING)
    rules.add("py_number", NUMBER)
    rules.add("py_integer", INTEGER)
    rules.add("py_boolean", '"True" | "False"')
    rules.add("py_null", '"None"')
    rules.add("py_any", "py_string | py_number | py_boolean | py_null | py_array | py_object")
    rules.add("py_array", '"[" (py_any (", " py_any)*)? "]"')
    rules.add("py_object", '"{" (py_string ": " py_any (", " py_string ": " py_any)*)? "}"')
    return f"py_{kind}" if kind else "py_any"


def _gemma(rules: Rules, kind: str, quote: str) -> str:
    mark = rules.literal(quote)
    rules.add("ge_string", f"{mark} {rules.up_to('ge_rest', quote)}")
    rules.add("ge_number", NUMBER)
    rules.add("ge_integer", INTEGER)
    rules.add("ge_boolean", '"true" | "false"')
    rules.add("ge_null", '"null"')
    rules.add("ge_key", r"/[A-Za-z_][A-Za-z0-9_]{0,63}/")
    rules.add("ge_any", "ge_string | ge_number | ge_boolean | ge_null | ge_array | ge_object")
    rules.add("ge_array", '"[" (ge_any ("," ge_any)*)? "]"')
    rules.add("ge_object", '"{" (ge_key ":" ge_any ("," ge_key ":" ge_any)*)? "}"')
    return f"ge_{kind}" if kind else "ge_any"


def _choice(
    schema: Mapping[str, Any], name: str, enum: Callable[[Sequence[Any]], str], value: Callable[[str], str]
) -> str:
    """An expression for one argument: its enumerated values, or any value of its types."""
    given = _properties(schema)[name]
    if isinstance(given, Mapping) and isinstance(given.get("enum"), list) and given["enum"]:
        return f"({enum(given['enum'])})"
    return f"({one_of([value(kind) for kind in declared_types(schema, name) or ('',)])})"


def _python_enum(values: Sequence[Any]) -> str:
    return one_of([quoted(repr(value)) for value in values])


def _gemma_enum(rules: Rules, values: Sequence[Any], quote: str) -> str:
    return one_of(
        [rules.literal(f"{quote}{value}{quote}" if isinstance(value, str) else json.dumps(value)) for value in values]
    )


def _strings(schema: Mapping[str, Any]) -> list[str]:
    """Values of an enumeration of strings."""
    values = schema.get("enum")
    return values if isinstance(values, list) and values and all(isinstance(value, str) for value in values) else []


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return properties if isinstance(properties, Mapping) else {}
