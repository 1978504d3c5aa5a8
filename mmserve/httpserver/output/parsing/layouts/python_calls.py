"""Calls written as Python: ``[f(a="x", b=1), g()]``. Arguments are literals; nothing is executed. Pure."""

from __future__ import annotations

import ast
import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmserve.httpserver.output.parsing.layouts.layout import Layout, Tools, begin_call, give_up, is_name
from mmserve.httpserver.output.parsing.source import Source, Steps
from mmserve.httpserver.output.parsing.writer import Writer

MAX_CALL_CHARS = 1 << 16
"""Longest call: it is read as a whole. A longer one is text."""
_MAX_DEPTH = 32
"""Brackets inside brackets. More are no call."""
_NAMES = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class PythonCalls(Layout):
    """Calls in brackets, or one a line."""

    close: str = ""
    bracketed: bool = True
    """The calls stand in brackets. False: they need not."""

    def read(self, source: Source, writer: Writer, opener: str, tools: Tools) -> Steps[bool]:
        listed = (yield from source.skip_space()) == "["
        if listed:
            source.take(1)
        elif self.bracketed:
            return False
        source.raise_limit(MAX_CALL_CHARS)
        if not (yield from self._call(source, writer, tools, listed)):
            return False
        while True:
            source.begin(MAX_CALL_CHARS)
            if (yield from source.skip_space()) == ",":
                source.take(1)
            if not (yield from self._call(source, writer, tools, listed)):
                give_up(source, writer)
                break
        for end in ("]" if listed else "", self.close):
            yield from source.closing(end)
        return True

    def _call(self, source: Source, writer: Writer, tools: Tools, listed: bool) -> Steps[bool]:
        """Write one call at its closing bracket. False if none is here: then nothing has been written."""
        yield from source.skip_space()
        name = yield from source.word()
        if not is_name(name) or (yield from source.peek()) != "(":
            return False
        text = yield from _bracketed(source)
        if not text or not (arguments := _arguments(text, tools.get(name))):
            return False
        if listed and (yield from source.skip_space()) not in (",", "]", ""):
            return False
        begin_call(source, writer, name)
        writer.arguments(arguments)
        writer.end_call()
        return True


def _bracketed(source: Source) -> Steps[str]:
    """From an opening bracket to the one that closes it; "" if it does not close or too many are open."""
    parts, depth, quote = [], 0, ""
    while char := (yield from source.peek()):
        if quote:
            step = (yield from source.one_of((quote,))) or char
            if step == quote:
                quote = ""
        elif char in "\"'":
            step = quote = (yield from source.one_of((char * 3,))) or char
        else:
            step = char
            depth += (char in "([{") - (char in ")]}")
        parts.append(source.take(len(step)))
        if char == "\\":
            parts.append(source.take(len((yield from source.peek()))))
        if depth == 0:
            return "".join(parts)
        if depth > _MAX_DEPTH:
            return ""
    return ""


def _arguments(text: str, schema: Mapping[str, Any] | None) -> str:
    """JSON of a call's arguments by name; "" if they are no literals. Those without a name get the names of the
    schema's properties, in their order."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            call = ast.parse(f"f{text}", mode="eval").body
        if not isinstance(call, ast.Call):
            return ""
        properties = schema.get("properties") if schema is not None else None
        names = list(properties) if isinstance(properties, Mapping) else []
        pairs = [*zip(names, call.args, strict=False), *((word.arg, word.value) for word in call.keywords)]
        if len(call.args) > len(names) or len(dict(pairs)) < len(pairs):
            return ""
        return json.dumps({_text(name): _value(node) for name, node in pairs}, ensure_ascii=False)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return ""


def _value(node: ast.expr) -> Any:
    """Raises ValueError for what is no literal that JSON knows."""
    match node:
        case ast.Constant(value=str() as text):
            return _text(text)
        case ast.Constant(value=int() | None as value):
            return value
        case ast.Constant(value=float() as number) if math.isfinite(number):
            return number
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            return -_value(node.operand)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_value(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            return {_text(_value(key) if key else None): _value(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError("not a literal")


def _text(value: object) -> str:
    """A name or a string. Raises ValueError if it is none, or cannot be encoded."""
    if not isinstance(value, str):
        raise ValueError("not a string")
    value.encode()
    return value
