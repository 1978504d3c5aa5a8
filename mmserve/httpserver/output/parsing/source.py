"""The characters that a parser has yet to read, and the questions that it asks about them. Pure.

A parser is a generator that yields whenever it needs more text than has arrived. What it reads depends on the text
alone and never on where the text was cut into pieces.

Special tokens are markers: each is one character of the range of lone surrogates, which decoded text cannot contain.
So a marker is never confused with the same characters written as text.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]
"""A parser that yields when it needs more text, and returns T."""

HEAD_CHARS = 512
"""Longest head of a call, from its opening marker to its arguments. What follows a head that fails is read again, so
this bounds the work."""

_FIRST_MARKER, _LAST_MARKER = 0xD800, 0xDBFF
MARKER = re.compile("[\ud800-\udbff]")
_SURROGATES = re.compile("[\ud800-\udfff]")


def marker_char(index: int) -> str:
    """The character that stands for marker number ``index``."""
    if not 0 <= index <= _LAST_MARKER - _FIRST_MARKER:
        raise ValueError(f"marker {index} of at most {_LAST_MARKER - _FIRST_MARKER + 1}")
    return chr(_FIRST_MARKER + index)


def marker_index(char: str) -> int:
    return ord(char) - _FIRST_MARKER


class Source:
    """Text that has arrived and is not read. ``text[at:]`` is what comes next."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self._mark: int | None = None
        self._limit = 0

    @property
    def available(self) -> int:
        """Where the text ends for now."""
        return len(self.text) if self._mark is None else min(len(self.text), self._mark + self._limit)

    def feed(self, text: str, *, markers: bool = False) -> None:
        """Add text. ``markers``: surrogates in it stand for markers; otherwise they become U+FFFD."""
        if not (markers or text.isascii()):
            text = _SURROGATES.sub("\ufffd", text)
        start = self.at if self._mark is None else self._mark
        self.text = self.text[start:] + text
        self.at -= start
        if self._mark is not None:
            self._mark = 0

    def end(self) -> None:
        """No text follows."""
        self.ended = True

    def begin(self, limit: int = HEAD_CHARS) -> None:
        """Remember this place for ``rewind``. Until ``commit``, the text seems to end ``limit`` characters on."""
        self._mark, self._limit = self.at, limit

    def commit(self) -> None:
        """Forget the place remembered."""
        self._mark = None

    def rewind(self) -> str:
        """Return to the place remembered and forget it. Returns the text read since then."""
        assert self._mark is not None
        read, self.at, self._mark = self.text[self._mark : self.at], self._mark, None
        return read

    def raise_limit(self, limit: int) -> None:
        """The text seems to end ``limit`` characters from the place remembered."""
        self._limit = limit

    def take(self, count: int) -> str:
        """Read characters that have arrived."""
        self.at += count
        return self.text[self.at - count : self.at]

    def peek(self) -> Steps[str]:
        """The next character, not read; "" at the end."""
        while self.at >= len(self.text):
            if self.ended or self._at_limit():
                return ""
            yield
        return "" if self._at_limit() else self.text[self.at]

    def skip_space(self) -> Steps[str]:
        """Read white space. Returns the character that follows, not read; "" at the end."""
        while (char := (yield from self.peek())).isspace():
            self.at += 1
        return char

    def one_of(self, literals: Sequence[str]) -> Steps[str]:
        """The literal that comes next, not read; "" if none does. No literal may be the beginning of another."""
        while True:
            if self._at_limit():
                return ""
            ahead = self.text[self.at :]
            for literal in literals:
                if ahead.startswith(literal):
                    return literal
            if self.ended or not any(literal.startswith(ahead) for literal in literals):
                return ""
            yield

    def literal(self, literal: str) -> Steps[bool]:
        """Read ``literal`` if it comes next."""
        found = yield from self.one_of((literal,))
        self.at += len(found)
        return bool(found)

    def closing(self, literal: str) -> Steps[None]:
        """Read ``literal``, and white space before it, if it comes next. At the end, a part of it will do."""
        if not literal:
            return
        self.begin()
        yield from self.skip_space()
        if (yield from self.literal(literal)):
            self.commit()
        elif self.ended and literal.startswith(self.text[self.at :]):
            self.at = len(self.text)
            self.commit()
        else:
            self.rewind()

    def word(self, more: str = "_.-") -> Steps[str]:
        """Read letters, digits and the characters of ``more``."""
        chars: list[str] = []
        while (char := (yield from self.peek())) and (char.isalnum() or char in more):
            chars.append(self.take(1))
        return "".join(chars)

    def until(self, stop: str) -> Steps[str | None]:
        """Read up to and with the character ``stop``. Returns what precedes it; None at the end of the line or text."""
        chars: list[str] = []
        while (char := (yield from self.peek())) and char != "\n":
            self.at += 1
            if char == stop:
                return "".join(chars)
            chars.append(char)
        return None

    def _at_limit(self) -> bool:
        return self._mark is not None and self.at - self._mark >= self._limit


class Literals:
    """Finds the first of several literals in text that arrives in pieces."""

    def __init__(self, literals: Sequence[str]) -> None:
        self._pattern = re.compile("|".join(map(re.escape, sorted(literals, key=len, reverse=True))) or r"(?!)")
        beginnings = "|".join(filter(None, map(_beginning, literals))) or r"(?!)"
        self._unfinished = re.compile(rf"(?:{beginnings})\Z")
        self._longest = max(map(len, literals), default=1)

    def search(self, source: Source) -> tuple[int, str]:
        """How many characters precede the first literal, and the literal; or how many precede what may yet become one.

        An earlier place that may become a literal wins over a later one that is complete.
        """
        held = len(source.text) if source.ended else self._held_from(source)
        found = self._pattern.search(source.text, source.at)
        if found is not None and found.start() <= held:
            return found.start() - source.at, found[0]
        return held - source.at, ""

    def _held_from(self, source: Source) -> int:
        """Where the longest end of the text starts that is the beginning of a literal, and not all of it."""
        text = source.text
        found = self._unfinished.search(text, max(source.at, len(text) - self._longest + 1))
        return len(text) if found is None else found.start()


def _beginning(literal: str) -> str:
    """A pattern for the first characters of a literal, at least one and not all."""
    matched = ""
    for char in reversed(literal[:-1]):
        matched = re.escape(char) + (f"(?:{matched})?" if matched else "")
    return matched
