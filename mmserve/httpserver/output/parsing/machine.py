"""Reads a model's output as it arrives: text, reasoning and tool calls. Pure.

The pieces depend on the text alone. However it is cut, ``join`` of all pieces is the same.
"""

from __future__ import annotations

from mmserve.httpserver.output.parsing.formats import Format
from mmserve.httpserver.output.parsing.layouts.layout import Tools
from mmserve.httpserver.output.parsing.pieces import Piece, Reasoning, Text, join
from mmserve.httpserver.output.parsing.source import HEAD_CHARS, MARKER, Literals, Source, Steps, marker_char
from mmserve.httpserver.output.parsing.writer import Writer


class OutputMachine:
    """The output of one choice. ``tools``: None if calls are text (no tools were given, or none may be called).

    ``markers``: literals of the format that are special tokens of this checkpoint. They count only if they come through
    ``push_marker``; the same characters in a text are text.
    """

    def __init__(
        self, format: Format, tools: Tools | None, start_in_reasoning: bool, markers: tuple[str, ...] = ()
    ) -> None:
        chars = {name: marker_char(index) for index, name in enumerate(markers)}
        self._chars = chars
        format = format.with_markers(chars)
        self._source = Source()
        self._writer = Writer(markers, Reasoning if start_in_reasoning and format.thinking else Text)
        self._thinking = format.thinking
        self._calls = None if tools is None else format.calls
        self._tools = tools or {}
        self._anywhere, self._at_start = self._literals(reasoning=False)
        self._in_reasoning, self._at_start_of_reasoning = self._literals(reasoning=True)
        self._steps = self._run()
        next(self._steps, None)

    @property
    def in_reasoning(self) -> bool:
        """True within a thought."""
        return self._writer.reasoning

    def push(self, text: str) -> list[Piece]:
        """The pieces that more text makes certain. ``text``: complete characters."""
        self._source.feed(text)
        return self._step()

    def push_marker(self, name: str) -> list[Piece]:
        """As ``push``, for a special token. One that is not among ``markers`` is text."""
        char = self._chars.get(name)
        self._source.feed(char or name, markers=char is not None)
        return self._step()

    def finish(self) -> list[Piece]:
        """The last pieces. Call once, when no text follows."""
        self._source.end()
        next(self._steps, None)
        self._writer.end()
        return join(self._writer.take())

    def _step(self) -> list[Piece]:
        next(self._steps, None)
        return join(self._writer.take())

    def _literals(self, *, reasoning: bool) -> tuple[Literals, tuple[str, ...]]:
        """What ends text (or a thought) wherever it stands, and what does only at its beginning."""
        anywhere: list[str] = []
        at_start: list[str] = []
        if self._thinking is not None:
            if reasoning:
                anywhere.append(self._thinking.close)
            # In the middle of a text, a tag of plain characters is something that the text is about.
            is_marker = MARKER.match(self._thinking.open) and not reasoning
            (anywhere if is_marker else at_start).append(self._thinking.open)
        if self._calls is not None:
            anywhere += self._calls.open
            if not reasoning:
                at_start += self._calls.open_at_start
        return Literals(tuple(anywhere)), tuple(at_start)

    def _run(self) -> Steps[None]:
        while opener := (yield from self._prose()):
            yield from self._after(opener)

    def _prose(self) -> Steps[str]:
        """Write text up to a literal that ends it. Returns the literal, which is not read; "" at the end."""
        source, writer = self._source, self._writer
        anywhere = self._in_reasoning if writer.reasoning else self._anywhere
        while True:
            if writer.at_start:
                at_start = self._at_start_of_reasoning if writer.reasoning else self._at_start
                yield from self._space()
                if found := (yield from source.one_of(at_start)):
                    return found
            count, found = anywhere.search(source)
            writer.say(source.take(count))
            if found or (source.ended and source.at == len(source.text)):
                return found
            yield

    def _space(self) -> Steps[None]:
        while (yield from self._source.peek()).isspace():
            self._writer.say(self._source.take(1))

    def _after(self, opener: str) -> Steps[None]:
        """Read what an opener stands for: a change between text and reasoning, or calls. Otherwise it is text."""
        source, writer = self._source, self._writer
        if self._thinking is not None and opener in (self._thinking.open, self._thinking.close):
            source.take(len(opener))
            writer.turn_to(Reasoning if opener == self._thinking.open else Text)
            return
        assert self._calls is not None
        source.begin()
        if opener in self._calls.open:
            source.take(len(opener))
        if not (yield from self._calls.layout.read(source, writer, opener, self._tools)):
            read = source.rewind()
            writer.say(source.take(len(read) if len(read) > HEAD_CHARS else len(opener)))
