"""What a chat prints: answers to stdout, all else to stderr; colours only where the terminal has them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from mmserve.cli.chat.answer import Answer, printable
from mmserve.cli.chat.conversation import Message

_DIM, _RED, _PLAIN = "\x1b[2m", "\x1b[31m", "\x1b[0m"


class Screen:
    """``show_reasoning``: print what a model writes before its answer."""

    def __init__(self, *, show_reasoning: bool) -> None:
        self._show_reasoning = show_reasoning
        self._colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._in_reasoning = False

    def note(self, text: str) -> None:
        """A remark of the program."""
        self._end_reasoning()
        print(self._in(_DIM, printable(text)), file=sys.stderr, flush=True)

    def error(self, text: str) -> None:
        self._end_reasoning()
        print(self._in(_RED, f"error: {printable(text)}"), file=sys.stderr, flush=True)

    def text(self, text: str) -> None:
        """A piece of an answer, without control characters."""
        self._end_reasoning()
        print(text, end="", flush=True)

    def reasoning(self, text: str) -> None:
        """A piece of what comes before the answer, without control characters."""
        if self._show_reasoning:
            self._in_reasoning = True
            print(self._in(_DIM, text), end="", file=sys.stderr, flush=True)

    def end_answer(self, answer: Answer, *, stats: bool) -> None:
        """End the line, and say what is not usual about the answer."""
        print(flush=True)
        if answer.reason not in ("stop", ""):
            self.note(f"[ended: {answer.reason}]")
        if stats:
            self.note(f"[{answer.stats()}]")

    def conversation(self, messages: Iterable[Message]) -> None:
        """All messages, with pictures named by their kind."""
        for message in messages:
            self.note(f"{message['role']}: {_text_of(message.get('content'))}")

    def _end_reasoning(self) -> None:
        if self._in_reasoning:
            self._in_reasoning = False
            print(file=sys.stderr, flush=True)

    def _in(self, colour: str, text: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self._colours else text


def _text_of(content: object) -> str:
    if not isinstance(content, list):
        return str(content)
    parts = [part.get("text") or _named(part.get("type")) for part in content if isinstance(part, dict)]
    return " ".join(parts)


def _named(kind: object) -> str:
    return "[picture]" if kind == "image_url" else f"[{kind}]"
