"""Rules for the calls of each layout: what its parser reads as calls of the given tools. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmserve.httpserver.output.parsing.formats import Calls
from mmserve.httpserver.output.parsing.grammar.rules import Rules, one_of, quoted
from mmserve.httpserver.output.parsing.grammar.values import (
    arguments,
    gemma_argument,
    python_argument,
    tag_argument,
)
from mmserve.httpserver.output.parsing.layouts.gemma_calls import GemmaCalls
from mmserve.httpserver.output.parsing.layouts.json_calls import JsonCalls
from mmserve.httpserver.output.parsing.layouts.layout import Tools
from mmserve.httpserver.output.parsing.layouts.named_calls import DeepSeekCalls, MistralCalls
from mmserve.httpserver.output.parsing.layouts.python_calls import PythonCalls
from mmserve.httpserver.output.parsing.layouts.xml_calls import XmlCalls

MAYBE_NEW_LINE = '"\\n"?'
NEW_LINE_AFTER_NAME = ">\n"


@dataclass(frozen=True)
class Block:
    """Expressions for calls: ``open``, one or more ``call`` with ``between`` them, ``close``."""

    call: str
    open: str = ""
    between: str = ""
    close: str = ""

    def expression(self, *, parallel: bool) -> str:
        repeated = f"({self.between} {self.call})*" if parallel else ""
        return " ".join(filter(None, (self.open, self.call, repeated, self.close)))


def block(rules: Rules, calls: Calls, tools: Tools, opener: str) -> Block:
    """The block of calls after ``opener`` ("" if the format needs none).

    Raises ValueError for a tool that cannot be called in this format.
    """
    match layout := calls.layout:
        case JsonCalls():
            return _json(rules, layout, tools, opener)
        case MistralCalls():
            return _mistral(rules, layout, tools, opener)
        case DeepSeekCalls():
            call = _deepseek(rules, layout, tools)
            return Block(call, rules.literal(layout.block), MAYBE_NEW_LINE, rules.literal(layout.block_close))
        case XmlCalls():
            return Block(_xml(rules, layout, tools, opener), between=MAYBE_NEW_LINE)
        case PythonCalls():
            return _python(rules, layout, tools, opener)
        case GemmaCalls():
            return Block(_gemma(rules, layout, tools, opener))
    raise ValueError("this format of calls has no grammar")


def _arguments(rules: Rules, schema: Mapping[str, Any]) -> str:
    if schema.get("type", "object") != "object":
        raise ValueError("the arguments of a tool must be an object")
    return rules.json({**schema, "type": "object"})


def _json(rules: Rules, layout: JsonCalls, tools: Tools, opener: str) -> Block:
    if not opener:
        return Block(_objects(rules, tools, "parameters"), between=quoted(f"{layout.separator} "))
    call = _objects(rules, tools, "arguments")
    open, close = rules.literal(f"{opener}\n"), rules.literal(f"\n{layout.close}")
    return Block(rules.add("tagged", f"{open} {call} {close}"), between=MAYBE_NEW_LINE)


def _objects(rules: Rules, tools: Tools, key: str) -> str:
    calls = []
    for name, schema in tools.items():
        head = f'{{"name": {quoted(name)}, "{key}": '
        calls.append(f'{quoted(head)} {_arguments(rules, schema)} "}}"')
    return _alternatives(rules, calls)


def _mistral(rules: Rules, layout: MistralCalls, tools: Tools, opener: str) -> Block:
    """Checkpoints that write names and arguments apart have a token between them."""
    if rules.is_token(layout.arguments):
        start = rules.literal(opener)
        calls = []
        for name, schema in tools.items():
            calls.append(f"{start} {rules.literal(name + layout.arguments)} {_arguments(rules, schema)}")
        return Block(_alternatives(rules, calls))
    listed = _objects(rules, tools, "arguments")
    return Block(listed, rules.literal(f"{opener}["), quoted(", "), quoted("]"))


def _deepseek(rules: Rules, layout: DeepSeekCalls, tools: Tools) -> str:
    calls = []
    for name, schema in tools.items():
        head, tail = f"{name}{layout.separator}", ""
        if layout.fenced:
            head, tail = f"function{layout.separator}{name}\n```json\n", "\n```"
        open, close = rules.literal(layout.call + head), rules.literal(tail + layout.call_close)
        calls.append(f"{open} {_arguments(rules, schema)} {close}")
    return _alternatives(rules, calls)


def _xml(rules: Rules, layout: XmlCalls, tools: Tools, opener: str) -> str:
    calls = []
    for index, (name, schema) in enumerate(tools.items()):
        argument = tag_argument(rules, schema, "value", layout.parameter, layout.parameter_close)
        parameters = arguments(rules, f"call_{index}", schema, "", argument)
        calls.append(f"{quoted(name + NEW_LINE_AFTER_NAME)} {parameters}")
    function = _alternatives(rules, calls)
    open = rules.literal(f"{opener}\n{layout.function}")
    close = rules.literal(f"{layout.function_close}\n{layout.close}")
    return rules.add("tagged", f"{open} {function} {close}")


def _python(rules: Rules, layout: PythonCalls, tools: Tools, opener: str) -> Block:
    calls = []
    for index, (name, schema) in enumerate(tools.items()):
        listed = arguments(rules, f"call_{index}", schema, ", ", python_argument(rules, schema))
        calls.append(f'{quoted(name + "(")} {listed} ")"')
    call = _alternatives(rules, calls)
    if layout.bracketed:
        open, close = rules.literal(f"{opener}["), rules.literal(f"]{layout.close if opener else ''}")
        return Block(call, open, quoted(", "), close)
    line = "" if opener.endswith("\n") else "\n"
    return Block(call, rules.literal(f"{opener}{line}"), quoted("\n"), rules.literal(f"\n{layout.close}"))


def _gemma(rules: Rules, layout: GemmaCalls, tools: Tools, opener: str) -> str:
    calls = []
    for index, (name, schema) in enumerate(tools.items()):
        listed = arguments(rules, f"call_{index}", schema, ",", gemma_argument(rules, schema, layout.quote))
        calls.append(f'{quoted(name + "{")} {listed} "}}"')
    call = _alternatives(rules, calls)
    return rules.add("tagged", f"{rules.literal(opener + layout.call)} {call} {rules.literal(layout.close)}")


def _alternatives(rules: Rules, calls: list[str]) -> str:
    """A rule for one call of any of the tools."""
    return rules.add("call", one_of([rules.add(f"tool_{index}", call) for index, call in enumerate(calls)]))
