"""The content of an Anthropic answer: blocks, and the events that a stream of them is made of. Pure.

A block is open until the next one starts; blocks never overlap. A whole answer is the fold of the same events.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from mmserve.httpserver.output.parsing.pieces import CallArguments, CallEnd, CallStart, Piece, Reasoning, Text

_SIGNATURE = "unsigned"
"""Clients send it back with the thoughts, and expect one that is not empty. Nothing here depends on it."""


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str = ""


class Caller(msgspec.Struct, frozen=True):
    """Who calls the tool: the model itself, not code that it has written."""

    type: str = "direct"


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: msgspec.Raw
    caller: Caller = Caller()


Block = TextBlock | ThinkingBlock | ToolUseBlock


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, tag_field="type", tag="signature_delta"):
    signature: str


class InputDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: Block


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    index: int


Event = BlockStart | BlockDelta | BlockStop
_NO_INPUT = msgspec.Raw(b"{}")


class ContentWriter:
    """Turns the pieces of one answer into events. ``make_id(n)``: the id of the n-th call, from 0.

    ``shows_thinking``: False if the client wants thoughts to be left out; their blocks then have no text.
    """

    def __init__(self, make_id: Callable[[int], str], *, shows_thinking: bool = True) -> None:
        self._make_id = make_id
        self._shows_thinking = shows_thinking
        self._open: Block | None = None
        self._index = -1
        """Of the youngest block."""
        self.num_calls = 0
        """Calls that are complete."""

    def events(self, piece: Piece) -> Iterator[Event]:
        match piece:
            case Text(text):
                if not isinstance(self._open, TextBlock):
                    yield from self._start(TextBlock(""))
                yield BlockDelta(self._index, TextDelta(text))
            case Reasoning(text):
                if not isinstance(self._open, ThinkingBlock):
                    yield from self._start(ThinkingBlock(""))
                if self._shows_thinking:
                    yield BlockDelta(self._index, ThinkingDelta(text))
            case CallStart(call, name):
                yield from self._start(ToolUseBlock(self._make_id(call), name, _NO_INPUT))
            case CallArguments(_, json):
                yield BlockDelta(self._index, InputDelta(json))
            case CallEnd():
                self.num_calls += 1
                yield from self.end()

    def end(self) -> Iterator[Event]:
        """Ends the open block, if there is one."""
        if isinstance(self._open, ThinkingBlock):
            yield BlockDelta(self._index, SignatureDelta(_SIGNATURE))
        if self._open is not None:
            yield BlockStop(self._index)
        self._open = None

    def _start(self, block: Block) -> Iterator[Event]:
        yield from self.end()
        self._open = block
        self._index += 1
        yield BlockStart(self._index, block)


class ContentFold:
    """The blocks of an answer, from its events."""

    def __init__(self) -> None:
        self._blocks: list[tuple[Block, list[str]]] = []
        """Each as it began, and the texts of its deltas."""

    def add(self, event: Event) -> None:
        match event:
            case BlockStart(_, block):
                self._blocks.append((block, []))
            case BlockDelta(index, delta):
                self._blocks[index][1].append(_text_of(delta))

    def blocks(self) -> list[Block]:
        """The input of a call that was cut short is empty: it is no JSON."""
        return [_complete(block, "".join(texts)) for block, texts in self._blocks]


def _text_of(delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta) -> str:
    match delta:
        case TextDelta(text) | ThinkingDelta(text) | InputDelta(text):
            return text
        case SignatureDelta():
            return ""


def _complete(block: Block, text: str) -> Block:
    match block:
        case TextBlock():
            return TextBlock(text)
        case ThinkingBlock():
            return ThinkingBlock(text, _SIGNATURE)
        case ToolUseBlock():
            return ToolUseBlock(block.id, block.name, _input(text))


def _input(text: str) -> msgspec.Raw:
    try:
        is_object = isinstance(msgspec.json.decode(text), dict)
    except msgspec.DecodeError:
        is_object = False
    return msgspec.Raw(text.encode()) if is_object else _NO_INPUT
