"""The pieces of an answer: text, reasoning and tool calls, in the order in which the model wrote them. Pure.

The whole answer is ``join`` of the pieces that were streamed, so that both are equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True)
class Text:
    """What the user reads."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The model's thoughts, without their markers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of the function ``name``. ``call``: position in the answer, from 0, without gaps."""

    call: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next characters of a call's arguments. All of a complete call are the text of one JSON object."""

    call: int
    json: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """The call is complete and its arguments parse. A call that was cut short or is malformed has none."""

    call: int


Piece = Text | Reasoning | CallStart | CallArguments | CallEnd


def characters(piece: Piece) -> str:
    """What the model wrote, as far as it is in the piece."""
    match piece:
        case Text() | Reasoning():
            return piece.text
        case CallStart():
            return piece.name
        case CallArguments():
            return piece.json
        case CallEnd():
            return ""


def join(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces with neighbours of one kind (and one call) merged. Pieces without characters are left out."""
    joined: list[Piece] = []
    for (kind, call), group in groupby(filter(_says_something, pieces), _kind):
        if kind is Text or kind is Reasoning:
            joined.append(kind("".join(piece.text for piece in group if isinstance(piece, Text | Reasoning))))
        elif kind is CallArguments:
            text = "".join(piece.json for piece in group if isinstance(piece, CallArguments))
            joined.append(CallArguments(call, text))
        else:
            joined.extend(group)
    return joined


def _says_something(piece: Piece) -> bool:
    if isinstance(piece, Text | Reasoning):
        return bool(piece.text)
    return not isinstance(piece, CallArguments) or bool(piece.json)


def _kind(piece: Piece) -> tuple[type[Piece], int]:
    """Neighbours with equal kinds are merged."""
    return type(piece), -1 if isinstance(piece, Text | Reasoning) else piece.call
