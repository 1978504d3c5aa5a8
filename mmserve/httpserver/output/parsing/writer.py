"""Puts the pieces of one answer together: white space held back, calls numbered, arguments checked. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mmserve.httpserver.output.parsing.pieces import CallArguments, CallEnd, CallStart, Piece, Reasoning, Text
from mmserve.httpserver.output.parsing.source import MARKER, marker_index


class Writer:
    """White space around thoughts and calls is part of the format and is dropped. So white space is held back until
    something follows it, and the end of the answer shows it."""

    def __init__(self, markers: Sequence[str], kind: type[Text | Reasoning]) -> None:
        self.at_start = True
        """Nothing but white space has been written since the answer, the thought or the text after a call began."""
        self._markers = markers
        self._kind = kind
        self._leading = False
        """White space comes directly after a marker."""
        self._space: list[str] = []
        self._pieces: list[Piece] = []
        self._num_calls = 0
        self._json: list[str] = []
        """Arguments of the last call."""

    @property
    def reasoning(self) -> bool:
        return self._kind is Reasoning

    def say(self, text: str) -> None:
        """Text or reasoning, whichever comes now. Markers in it are shown by their names."""
        if self._leading:
            text = text.lstrip()
            self._leading = not text
        body = text.rstrip()
        if body:
            self._pieces.append(self._kind(self.shown("".join(self._space) + body)))
            self._space = []
            self.at_start = False
        if len(body) < len(text):
            self._space.append(text[len(body) :])

    def turn_to(self, kind: type[Text | Reasoning]) -> None:
        """A marker was read; ``kind`` follows."""
        self._kind, self._space, self._leading, self.at_start = kind, [], True, True

    def start_call(self, name: str) -> None:
        """A call follows; text comes after it."""
        self.turn_to(Text)
        self._pieces.append(CallStart(self._num_calls, name))
        self._num_calls += 1
        self._json = []

    def arguments(self, text: str) -> None:
        """The next characters of the call's arguments."""
        text = self.shown(text)
        self._json.append(text)
        self._pieces.append(CallArguments(self._num_calls - 1, text))

    def end_call(self) -> None:
        """The arguments are complete. A call whose arguments do not parse gets no end."""
        if _is_object("".join(self._json)):
            self._pieces.append(CallEnd(self._num_calls - 1))
        self._json = []

    def end(self) -> None:
        """The answer is complete."""
        if self._space:
            self._pieces.append(self._kind("".join(self._space)))
            self._space = []

    def take(self) -> list[Piece]:
        """The pieces since the last call."""
        pieces, self._pieces = self._pieces, []
        return pieces

    def shown(self, text: str) -> str:
        """The text with the names of markers."""
        if not self._markers or text.isascii():
            return text
        return MARKER.sub(lambda found: self._markers[marker_index(found[0])], text)


def _is_object(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return False
    return True
