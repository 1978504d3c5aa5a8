"""Calls whose arguments are JSON: copied byte for byte, up to the brace that ends them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from mmserve.httpserver.output.parsing.layouts.layout import Layout, Tools, begin_call, give_up, is_name
from mmserve.httpserver.output.parsing.source import Source, Steps
from mmserve.httpserver.output.parsing.writer import Writer

BUFFERED_CHARS = 1 << 16
"""Longest arguments that may precede their function's name. They are held until the name is known."""

ARGUMENT_KEYS = ("arguments", "parameters")
_IN_STRING = re.compile('["\\\\\ud800-\udbff]')
_OUTSIDE = re.compile('["{}\\[\\]\ud800-\udbff]')


@dataclass(frozen=True)
class JsonCalls(Layout):
    """Objects with a name and arguments: ``{"name": "f", "arguments": {...}}``, in any order, or a list of them."""

    close: str = ""
    separator: str = ","
    """Between two calls."""
    bare_name: bool = True
    """A name without arguments is a call with none. False where no marker says that an object is a call."""

    def read(self, source: Source, writer: Writer, opener: str, tools: Tools) -> Steps[bool]:
        listed = (yield from source.skip_space()) == "["
        if listed:
            source.take(1)
        if not (yield from self._object(source, writer)):
            return False
        while (yield from self._next(source, writer)):
            pass
        for end in ("]" if listed else "", self.close):
            yield from source.closing(end)
        return True

    def _next(self, source: Source, writer: Writer) -> Steps[bool]:
        """One more call, with the separator before it."""
        source.begin()
        char = yield from source.skip_space()
        if char and char == self.separator:
            source.take(1)
        if (yield from self._object(source, writer)):
            return True
        give_up(source, writer)
        return False

    def _object(self, source: Source, writer: Writer) -> Steps[bool]:
        """One call. False if this is none: then nothing has been written."""
        if (yield from source.skip_space()) != "{":
            return False
        source.take(1)
        name, early = "", ""
        while True:
            key = yield from _key(source)
            if key == "name":
                name = yield from _string(source)
                if not is_name(name):
                    return False
            elif key in ARGUMENT_KEYS:
                if (yield from source.peek()) != "{":
                    return False
                if name:
                    begin_call(source, writer, name)
                    if (yield from copy_object(source, writer.arguments)):
                        writer.end_call()
                        yield from _rest_of_object(source)
                    return True
                early = yield from _early_arguments(source)
                if not early:
                    return False
            elif not key or not (yield from _scalar(source)):
                return False
            char = yield from source.skip_space()
            if name and (early or (char == "}" and self.bare_name)):
                begin_call(source, writer, name)
                writer.arguments(early or "{}")
                writer.end_call()
                yield from _rest_of_object(source)
                return True
            if char != ",":
                return False
            source.take(1)


def copy_object(source: Source, write: Callable[[str], None]) -> Steps[bool]:
    """Copy a JSON object as it is written. False if the text ends, or a marker comes, before it does."""
    depth, in_string, escaped = 0, False, False
    while (yield from source.peek()):
        at, end = source.at, source.available
        while at < end:
            if escaped:
                at, escaped = at + 1, False
                continue
            found = (_IN_STRING if in_string else _OUTSIDE).search(source.text, at, end)
            if found is None:
                at = end
                break
            at, char = found.end(), found[0]
            if char == '"':
                in_string = not in_string
            elif char == "\\":
                escaped = True
            elif char in "{[":
                depth += 1
            elif char in "}]":
                depth -= 1
            else:  # a marker
                write(source.take(found.start() - source.at))
                return False
            if depth == 0:
                write(source.take(at - source.at))
                return True
        write(source.take(at - source.at))
    return False


def _early_arguments(source: Source) -> Steps[str]:
    """Arguments that precede the name; "" if they do not end in time."""
    source.raise_limit(BUFFERED_CHARS)
    parts: list[str] = []
    complete = yield from copy_object(source, parts.append)
    return "".join(parts) if complete else ""


def _rest_of_object(source: Source) -> Steps[None]:
    """Read further members (an id, a type) and the brace. What is no such thing is left to be text."""
    source.begin()
    while True:
        char = yield from source.skip_space()
        if char in ("", "}"):
            source.take(len(char))
            source.commit()
            return
        if char == ",":
            source.take(1)
            if (yield from _key(source)) and (yield from _scalar(source)):
                continue
            if not (yield from source.peek()):
                source.commit()
                return
        source.rewind()
        return


def _key(source: Source) -> Steps[str]:
    """A member's name with its colon and the white space around them; "" if none comes."""
    yield from source.skip_space()
    key = yield from _string(source)
    if not key or (yield from source.skip_space()) != ":":
        return ""
    source.take(1)
    yield from source.skip_space()
    return key


def _string(source: Source) -> Steps[str]:
    """A JSON string, decoded; "" if none comes."""
    if (yield from source.peek()) != '"':
        return ""
    raw = source.take(1)
    while char := (yield from source.peek()):
        source.take(1)
        raw += char
        if char == "\\":
            raw += source.take(len((yield from source.peek())))
        elif char == '"':
            try:
                return str(json.loads(raw))
            except ValueError:
                return ""
    return ""


def _scalar(source: Source) -> Steps[bool]:
    """Read a string, a number or a name such as true."""
    if (yield from source.peek()) == '"':
        return bool((yield from _string(source)))
    return bool((yield from source.word("+-.")))
