"""Calls whose arguments are tags: ``<function=f><parameter=k>value</parameter></function>``. Pure.

A value is raw text. The tool's schema says what it means; text that does not fit is a string.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from mmserve.httpserver.output.parsing.layouts.layout import Layout, Tools, begin_call, is_name
from mmserve.httpserver.output.parsing.layouts.schema_types import declared_types, json_value
from mmserve.httpserver.output.parsing.source import MARKER, Literals, Source, Steps
from mmserve.httpserver.output.parsing.writer import Writer


@dataclass(frozen=True)
class XmlCalls(Layout):
    """Calls of Qwen3-Coder. The opener may be the tag of the function itself."""

    function: str = "<function="
    function_close: str = "</function>"
    parameter: str = "<parameter="
    parameter_close: str = "</parameter>"
    close: str = "</tool_call>"

    def read(self, source: Source, writer: Writer, opener: str, tools: Tools) -> Steps[bool]:
        if opener != self.function:
            yield from source.skip_space()
            if not (yield from source.literal(self.function)):
                return False
        name = yield from source.until(">")
        if name is None or not is_name(name):
            return False
        begin_call(source, writer, name)
        if (yield from self._parameters(source, writer, tools.get(name, {}))):
            writer.end_call()
            yield from source.closing(self.close)
        return True

    def _parameters(self, source: Source, writer: Writer, schema: object) -> Steps[bool]:
        """Write all arguments. False if the text ends before they do, or is none of this."""
        before = "{"
        while True:
            source.begin()
            yield from source.skip_space()
            found = yield from source.one_of((self.parameter, self.function_close, self.close))
            if found and found != self.parameter:
                source.commit()
                writer.arguments("{}" if before == "{" else "}")
                source.take(len(found) if found == self.function_close else 0)
                return True
            source.take(len(found))
            key = (yield from source.until(">")) if found else None
            if key is None or not is_name(key):
                self._leave(source)
                return False
            source.commit()
            writer.arguments(f"{before}{json.dumps(key, ensure_ascii=False)}: ")
            before = ", "
            if not (yield from self._value(source, writer, declared_types(schema, key))):
                return False

    def _leave(self, source: Source) -> None:
        """No tag of the format follows. If it is because the text was cut inside one, that part is read."""
        source.rewind()
        rest = source.text[source.at :].lstrip()
        tags = (self.parameter, self.function_close, self.close)
        in_name = rest.startswith(self.parameter) and is_name(rest.removeprefix(self.parameter))
        if source.ended and (in_name or any(tag.startswith(rest) for tag in tags)):
            source.at = len(source.text)

    def _value(self, source: Source, writer: Writer, types: tuple[str, ...]) -> Steps[bool]:
        """Write one value, without one line break at each side."""
        value = _Value(writer, types)
        ends = (self.parameter_close, self.close) if MARKER.match(self.close) else (self.parameter_close,)
        search = Literals(ends).search
        if (yield from source.peek()) == "\n":
            source.take(1)
        while True:
            count, found = search(source)
            value.add(source.take(count))
            if found == self.parameter_close:
                if (yield from self._closes(source)):
                    value.end()
                    return True
                value.add(source.take(len(found)))
            elif found or (source.ended and source.at == len(source.text)):
                value.cut()
                return False
            else:
                yield

    def _closes(self, source: Source) -> Steps[bool]:
        """Read the closing tag. One that nothing of the format follows is part of the value."""
        source.begin()
        source.take(len(self.parameter_close))
        yield from source.skip_space()
        follows = yield from source.one_of((self.parameter, self.function_close, self.close))
        if follows or not (yield from source.peek()) or self._begins_an_end(source):
            source.commit()
            return True
        source.rewind()
        return False

    def _begins_an_end(self, source: Source) -> bool:
        """The text was cut inside the tag that follows."""
        rest = source.text[source.at :]
        return source.ended and any(tag.startswith(rest) for tag in (self.parameter, self.function_close, self.close))


class _Value:
    """One argument: a string is written while it arrives, anything else once it is complete."""

    def __init__(self, writer: Writer, types: tuple[str, ...]) -> None:
        self._writer = writer
        self._types = types
        self._streamed = types == ("string",)
        self._line_break = ""
        """The last character, if it is a line break: it is dropped if the value ends after it."""
        self._parts: list[str] = []
        if self._streamed:
            writer.arguments('"')

    def add(self, text: str) -> None:
        text = self._line_break + text
        self._line_break = "\n" if text.endswith("\n") else ""
        text = self._writer.shown(text[: len(text) - len(self._line_break)])
        if not text:
            return
        if self._streamed:
            self._writer.arguments(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self._parts.append(text)

    def end(self) -> None:
        self._writer.arguments('"' if self._streamed else json_value("".join(self._parts), self._types))

    def cut(self) -> None:
        """The text ends inside the value."""
        if self._streamed:
            self._writer.arguments("\\n" if self._line_break else "")
        else:
            self._writer.arguments("".join(self._parts) + self._line_break)
