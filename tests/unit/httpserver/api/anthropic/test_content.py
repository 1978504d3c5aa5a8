"""The content of Anthropic answers: blocks do not overlap, and a whole answer is what the stream's events add up to."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mmserve.httpserver.api.anthropic.content import ContentFold, ContentWriter
from mmserve.httpserver.output.parsing.pieces import (
    CallArguments,
    CallEnd,
    CallStart,
    Piece,
    Reasoning,
    Text,
    join,
)

ANSWER: list[Piece] = [
    Reasoning("hm"),
    Text("I paint."),
    CallStart(0, "paint"),
    CallArguments(0, '{"colour": "grün"}'),
    CallEnd(0),
    CallStart(1, "stop"),
    CallEnd(1),
    Text("Done."),
]


def events_of(pieces: list[Piece], **options: bool) -> list[dict[str, Any]]:
    writer = ContentWriter(lambda number: f"toolu_{number}", **options)
    events = [event for piece in pieces for event in writer.events(piece)]
    return [_plain(event) for event in [*events, *writer.end()]]


def _plain(event: Any) -> dict[str, Any]:
    found = msgspec.json.decode(msgspec.json.encode(event))
    assert isinstance(found, dict)
    return found


def whole(pieces: list[Piece], **options: bool) -> list[dict[str, Any]]:
    writer, fold = ContentWriter(lambda number: f"toolu_{number}", **options), ContentFold()
    for piece in pieces:
        for event in writer.events(piece):
            fold.add(event)
    return [_plain(block) for block in fold.blocks()]


def as_a_client_reads(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What Anthropic's SDK makes of the events. Asserts that blocks are opened and closed in order."""
    blocks: list[dict[str, Any]] = []
    inputs: dict[int, str] = {}
    open_index = None
    for event in events:
        index = event["index"]
        match event["type"]:
            case "content_block_start":
                assert open_index is None
                assert index == len(blocks)
                blocks.append(event["content_block"])
                open_index = index
            case "content_block_delta":
                assert index == open_index
                kind, text = (event["delta"][key] for key in event["delta"])
                if kind == "input_json_delta":
                    inputs[index] = inputs.get(index, "") + text
                else:
                    blocks[index][kind.removesuffix("_delta")] += text
            case "content_block_stop":
                assert index == open_index
                open_index = None
    assert open_index is None
    for index, text in inputs.items():
        blocks[index]["input"] = msgspec.json.decode(text)
    return blocks


def test_the_blocks_of_an_answer() -> None:
    blocks = whole(ANSWER)
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use", "tool_use", "text"]
    assert blocks[0] == {"type": "thinking", "thinking": "hm", "signature": blocks[0]["signature"]}
    assert blocks[0]["signature"]
    assert blocks[2] == {
        "type": "tool_use",
        "id": "toolu_0",
        "name": "paint",
        "input": {"colour": "grün"},
        "caller": {"type": "direct"},
    }
    assert (blocks[3]["id"], blocks[3]["input"]) == ("toolu_1", {})


@given(st.lists(st.integers(1, 4), max_size=40))
def test_streamed_equals_whole_for_any_split(sizes: list[int]) -> None:
    split: list[Piece] = []
    for piece in ANSWER:
        texts = {Text: "text", Reasoning: "text", CallArguments: "json"}
        field = texts.get(type(piece))
        rest = getattr(piece, field) if field else ""
        if not rest:
            split.append(piece)
        while rest:
            size = sizes.pop() if sizes else len(rest)
            part, rest = rest[:size], rest[size:]
            split.append(CallArguments(piece.call, part) if isinstance(piece, CallArguments) else type(piece)(part))  # type: ignore[call-arg, arg-type]
    assert join(split) == ANSWER
    assert as_a_client_reads(events_of(split)) == whole(split) == whole(ANSWER)


def test_a_signature_comes_once_at_the_end_of_the_thoughts() -> None:
    kinds = [
        event["delta"]["type"] for event in events_of([Reasoning("a"), Reasoning("b"), Text("c")]) if "delta" in event
    ]
    assert kinds == ["thinking_delta", "thinking_delta", "signature_delta", "text_delta"]


def test_thoughts_that_are_left_out_have_a_block_without_text() -> None:
    blocks = whole(ANSWER, shows_thinking=False)
    assert (blocks[0]["type"], blocks[0]["thinking"]) == ("thinking", "")
    assert as_a_client_reads(events_of(ANSWER, shows_thinking=False)) == blocks


def test_a_call_that_was_cut_short_has_an_empty_input_and_does_not_count() -> None:
    cut: list[Piece] = [CallStart(0, "paint"), CallArguments(0, '{"colour": "gr')]
    assert whole(cut)[0]["input"] == {}
    writer = ContentWriter(str)
    assert [event for piece in cut for event in writer.events(piece)]
    assert writer.num_calls == 0


def test_an_empty_answer_has_no_blocks() -> None:
    assert whole([]) == events_of([]) == []
