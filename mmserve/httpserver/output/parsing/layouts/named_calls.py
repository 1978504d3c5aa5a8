"""Calls whose name stands outside the JSON of their arguments: Mistral's and DeepSeek's. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from mmserve.httpserver.output.parsing.layouts.json_calls import JsonCalls, copy_object
from mmserve.httpserver.output.parsing.layouts.layout import Layout, Tools, begin_call, is_name
from mmserve.httpserver.output.parsing.source import Source, Steps
from mmserve.httpserver.output.parsing.writer import Writer


@dataclass(frozen=True)
class MistralCalls(Layout):
    """After each marker a name and arguments, ``f[ARGS]{...}`` (v11 on), or once a list of objects (before)."""

    call_id: str = "[CALL_ID]"
    arguments: str = "[ARGS]"

    def read(self, source: Source, writer: Writer, opener: str, tools: Tools) -> Steps[bool]:
        if (yield from source.skip_space()) in ("[", "{"):
            return (yield from JsonCalls(separator=",").read(source, writer, opener, tools))
        name = yield from source.word()
        if not is_name(name):
            return False
        if (yield from source.literal(self.call_id)):
            yield from source.word()
        yield from source.literal(self.arguments)
        return (yield from _named_arguments(source, writer, name))


@dataclass(frozen=True)
class DeepSeekCalls(Layout):
    """``function<sep>f`` and a fenced block (R1, V3) or ``f<sep>{...}`` (V3.1), each between markers of its own."""

    block: str = "<｜tool▁calls▁begin｜>"
    block_close: str = "<｜tool▁calls▁end｜>"
    call: str = "<｜tool▁call▁begin｜>"
    call_close: str = "<｜tool▁call▁end｜>"
    separator: str = "<｜tool▁sep｜>"
    fenced: bool = True
    """How the checkpoint was trained to write calls. Both are read."""

    def read(self, source: Source, writer: Writer, opener: str, tools: Tools) -> Steps[bool]:
        if opener == self.block:
            yield from source.skip_space()
            if not (yield from source.literal(self.call)):
                return False
        if not (yield from self._call(source, writer)):
            return False
        while (yield from self._next(source, writer)):
            pass
        yield from source.closing(self.block_close)
        return True

    def _next(self, source: Source, writer: Writer) -> Steps[bool]:
        source.begin()
        yield from source.skip_space()
        if (yield from source.literal(self.call)) and (yield from self._call(source, writer)):
            return True
        source.rewind()
        return False

    def _call(self, source: Source, writer: Writer) -> Steps[bool]:
        yield from source.skip_space()
        name = yield from source.word()
        if not name or not (yield from source.literal(self.separator)):
            return False
        fenced = (yield from source.skip_space()) != "{"
        if fenced:
            name = yield from source.word()
            yield from source.skip_space()
            if not name or not (yield from source.literal("```json")):
                return False
        if not is_name(name) or not (yield from _named_arguments(source, writer, name)):
            return False
        if fenced:
            yield from source.closing("```")
        yield from source.closing(self.call_close)
        return True


def _named_arguments(source: Source, writer: Writer, name: str) -> Steps[bool]:
    """Arguments of the function ``name``. False if none begin here."""
    if (yield from source.skip_space()) != "{":
        return False
    begin_call(source, writer, name)
    if (yield from copy_object(source, writer.arguments)):
        writer.end_call()
    return True
