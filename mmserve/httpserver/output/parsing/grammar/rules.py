"""The rules of one grammar, in llguidance's Lark notation. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

WHITESPACE = r"[ \n\t]{0,20}"
"""White space inside JSON. Without a bound, small models write it for ever."""
ANYTHING = r"/(.|\n)*/"


class Rules:
    """Collects rules. ``tokens``: ids of the tokens that are added to the tokenizer, by their contents: a literal that
    is one of them is that token in the grammar, since text never matches it."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self._tokens = tokens
        self._rules: dict[str, str] = {}

    def add(self, name: str, body: str, attribute: str = "") -> str:
        """Define a rule once. Returns its name."""
        self._rules.setdefault(name, f"{name}{attribute}: {body}")
        return name

    def literal(self, text: str) -> str:
        """An expression for exactly this text, in which contents of added tokens are tokens."""
        parts, plain = [], ""
        inside = [name for name in self._tokens if name and name in text]
        while text:
            token = max((name for name in inside if text.startswith(name)), key=len, default="")
            if token:
                parts += [quoted(plain)] * bool(plain) + [f"<[{self._tokens[token]}]>"]
                text, plain = text[len(token) :], ""
            else:
                plain, text = plain + text[0], text[1:]
        return " ".join(parts + [quoted(plain)] * bool(plain)) or '""'

    def is_token(self, text: str) -> bool:
        return text in self._tokens

    def up_to(self, name: str, end: str) -> str:
        """A rule for any text and the literal that ends it."""
        if self.is_token(end):
            return self.add(name, f"{self.add('TEXT', ANYTHING)} {self.literal(end)}")
        return self.add(name, f"/(.|\\n)*{pattern(end)}/", "[lazy]")

    def json(self, schema: Mapping[str, Any]) -> str:
        """An expression for JSON of this schema."""
        return "%json " + json.dumps({**schema, "x-guidance": {"whitespace_pattern": WHITESPACE}}, ensure_ascii=False)

    def text(self, start: str) -> str:
        """The grammar."""
        return "%llguidance {}\n" + "\n".join([f"start: {start}", *self._rules.values(), ""])


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def pattern(text: str) -> str:
    """A regular expression that matches exactly this text."""
    return "".join(f"\\{char}" if char in r"\.*+?()[]{}|^$/" else "\\n" if char == "\n" else char for char in text)


def one_of(parts: Sequence[str]) -> str:
    return " | ".join(parts)
