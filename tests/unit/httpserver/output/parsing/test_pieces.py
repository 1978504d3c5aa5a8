"""Pieces of an answer: neighbours of one kind are merged, and nothing else changes."""

from __future__ import annotations

from mmserve.httpserver.output.parsing.pieces import (
    CallArguments,
    CallEnd,
    CallStart,
    Piece,
    Reasoning,
    Text,
    join,
)


def test_neighbours_of_one_kind_are_merged() -> None:
    assert join([Reasoning("a"), Reasoning("b"), Text("c"), Text("d"), Reasoning("e")]) == [
        Reasoning("ab"),
        Text("cd"),
        Reasoning("e"),
    ]


def test_arguments_are_merged_within_their_call_only() -> None:
    first: list[Piece] = [CallStart(0, "f"), CallArguments(0, "{"), CallArguments(0, "}"), CallEnd(0)]
    second: list[Piece] = [CallStart(1, "f"), CallArguments(1, "{}"), CallEnd(1)]
    merged = [CallStart(0, "f"), CallArguments(0, "{}"), CallEnd(0), CallStart(1, "f"), CallArguments(1, "{}")]
    assert join([*first, *second]) == [*merged, CallEnd(1)]


def test_pieces_without_characters_are_left_out() -> None:
    assert join([Text("a"), CallArguments(0, ""), Text(""), Reasoning(""), Text("b")]) == [Text("ab")]
