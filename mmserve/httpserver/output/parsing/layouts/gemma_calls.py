"""Calls of Gemma 4: ``call:f{city:<|"|>Oslo<|"|>,days:3}``, rewritten as JSON while they arrive. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from mmserve.httpserver.output.parsing.layouts.layout import Layout, Tools, begin_call, is_name
from mmserve.httpserver.output.parsing.source import MARKER, Literals, Source, Steps
from mmserve.httpserver.output.parsing.writer import Writer

_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_STRUCTURE = "{}[],:"
_MAX_DEPTH = 64


@dataclass(frozen=True)
class GemmaCalls(Layout):
    """Keys are bare words, strings stand between two markers, other values are bare."""

    call: str = "call:"
    quote: str = '<|"|>'
    close: str = "<tool_call|>"

    def read(self, source: Source, writer: Writer, opener: str, tools: Tools) -> Steps[bool]:
        yield from source.skip_space()
        if not (yield from source.literal(self.call)):
            return False
        name = yield from source.word()
        if not is_name(name) or (yield from source.skip_space()) != "{":
            return False
        begin_call(source, writer, name)
        if (yield from self._object(source, writer)):
            writer.end_call()
        yield from source.closing(self.close)
        return True

    def _object(self, source: Source, writer: Writer) -> Steps[bool]:
        """Write the arguments as JSON. False if the text ends, or another marker comes, before they do."""
        nesting = ""
        is_key = False
        while char := (yield from source.peek()):
            if (yield from source.literal(self.quote)):
                if not (yield from self._string(source, writer)):
                    return False
                continue
            if MARKER.match(char):
                return False
            if char not in _STRUCTURE:
                if char.isspace():
                    writer.arguments(source.take(1))
                else:
                    yield from self._bare(source, writer, is_key)
                continue
            writer.arguments(source.take(1))
            if char in "{[":
                nesting += char
            elif char in "}]":
                nesting = nesting[:-1]
            is_key = char in "{," and nesting.endswith("{")
            if not nesting:
                return True
            if len(nesting) > _MAX_DEPTH:
                return False
        return False

    def _string(self, source: Source, writer: Writer) -> Steps[bool]:
        """Write a string and read its closing quote."""
        search = Literals((self.quote,)).search
        writer.arguments('"')
        while True:
            count, found = search(source)
            text = writer.shown(source.take(count))
            writer.arguments(json.dumps(text, ensure_ascii=False)[1:-1])
            if found:
                source.take(len(found))
                writer.arguments('"')
                return True
            if source.ended:
                return False
            yield

    def _bare(self, source: Source, writer: Writer, is_key: bool) -> Steps[None]:
        """Write a key, a number or a name. A value of another kind becomes a string."""
        parts: list[str] = []
        while (char := (yield from source.peek())) and char not in _STRUCTURE and not MARKER.match(char):
            if not MARKER.match(self.quote) and (yield from source.one_of((self.quote,))):
                break
            parts.append(source.take(1))
        text = "".join(parts)
        word = text.rstrip()
        plain = not is_key and (word in ("true", "false", "null") or _NUMBER.fullmatch(word))
        cut = not (yield from source.peek())
        writer.arguments(text if plain or cut else json.dumps(word, ensure_ascii=False) + text[len(word) :])
