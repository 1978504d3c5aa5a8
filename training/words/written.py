"""What a segment of a training row says: its functions, its turns, and which parts of the answers are learned."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from training.words.functions import Function

Piece = tuple[str, bool]
"""Text, tokenised by itself, and whether it is learned.  What a grammar would force is not."""
CALL, CALL_END = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class Reply:
    """An answer of one kind."""

    kind: str
    pieces: tuple[Piece, ...]


@dataclass
class Segment:
    """A conversation on the pictures of a row: turns are (role, text), an assistant's a Reply."""

    functions: list[Function] = field(default_factory=list)
    turns: list[tuple[str, str | Reply]] = field(default_factory=list)

    def said(self, question: str, reply: Reply, role: str = "user") -> Segment:
        """Adds a question and its answer."""
        self.turns += [(role, question), ("assistant", reply)]
        return self


def plain(kind: str, text: str) -> Reply:
    """An answer without pieces."""
    return Reply(kind, ((text.strip(), True),))


def members(values: Mapping[str, Any], rng: random.Random, forced: bool) -> list[Piece]:
    """JSON of an object.  `forced`: its keys, and that another one comes, are given by a schema."""
    out: list[Piece] = [('{"', not forced)]
    for number, (key, value) in enumerate(values.items()):
        if number:
            out += [(",", not forced), (' "', True)]
        cut = rng.randrange(len(key)) if forced and rng.random() < 0.3 else 0  # a grammar may cut it anywhere
        out += [(part, not forced) for part in (key[:cut], key[cut:]) if part]
        out.append((f'": {json.dumps(value)}', True))
    return [*out, ("}", True)]


def call(name: str, arguments: Mapping[str, Any], rng: random.Random, forced: bool = False) -> list[Piece]:
    """A call in Hermes's form.  `forced`: that there is a call, of this function, is given."""
    head: list[Piece] = [(f'{CALL}\n{{"name": "', not forced), (name, not forced), ('", "arguments": ', not forced)]
    body = members(arguments, rng, forced) if arguments else [("{}", True)]
    return [*head, *body, (f"}}\n{CALL_END}", True)]
