"""The output items of a response, and the events that a stream of them is made of. Pure.

An item is open until the next one starts; items never overlap. The items of a whole response are those of the events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from mmserve.httpserver.api.call_ids import call_id
from mmserve.httpserver.api.openai.responses.events.objects import (
    CallItem,
    Item,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from mmserve.httpserver.api.openai.responses.sealed import sealed
from mmserve.httpserver.output.parsing.pieces import CallArguments, CallEnd, CallStart, Piece, Reasoning, Text


class Event(NamedTuple):
    """An event without its number. ``fields``: besides ``type``."""

    type: str
    fields: dict[str, Any]


def error_event(shown: dict[str, Any]) -> Event:
    """Both forms of an error: clients read the one or the other. ``shown``: its fields."""
    return Event("error", {name: shown[name] for name in ("code", "message", "param")} | {"error": shown})


_TEXT_EVENTS = {
    MessageItem: "response.output_text",
    ReasoningItem: "response.reasoning_text",
    CallItem: "response.function_call_arguments",
}
"""Kind of an item -> the name of the events that bring its text, without ``.delta`` and ``.done``."""


@dataclass
class _OpenItem:
    item: Item
    place: int
    """Position in the output."""
    seals_thoughts: bool
    texts: list[str] = field(default_factory=list)
    logprobs: list[msgspec.Raw] = field(default_factory=list)

    @property
    def at(self) -> dict[str, Any]:
        at: dict[str, Any] = {"item_id": self.item.id, "output_index": self.place}
        return at if isinstance(self.item, CallItem) else at | {"content_index": 0}

    def start(self) -> Iterator[Event]:
        # A copy, because the event may be encoded later than the item changes.
        item = msgspec.structs.replace(self.item)
        if isinstance(item, ReasoningItem):
            item.content = []
        yield Event("response.output_item.added", {"output_index": self.place, "item": item})
        if (part := self._part("", [])) is not None:
            yield Event("response.content_part.added", self.at | {"part": part})

    def delta(self, text: str, logprobs: list[msgspec.Raw]) -> Event:
        self.texts.append(text)
        self.logprobs += logprobs
        fields = self.at | {"delta": text}
        if isinstance(self.item, MessageItem):
            fields["logprobs"] = logprobs
        return Event(f"{_TEXT_EVENTS[type(self.item)]}.delta", fields)

    def end(self, complete: bool) -> Iterator[Event]:
        """Completes ``item``, which is then the one in the response's output."""
        text, item = "".join(self.texts), self.item
        done = f"{_TEXT_EVENTS[type(item)]}.done"
        part = self._part(text, self.logprobs)
        if isinstance(item, CallItem):
            item.arguments = text
            yield Event(done, self.at | {"name": item.name, "arguments": text})
        elif isinstance(part, OutputText):
            yield Event(done, self.at | {"text": text, "logprobs": self.logprobs})
        else:
            yield Event(done, self.at | {"text": text})
        if part is not None:
            yield Event("response.content_part.done", self.at | {"part": part})
        if isinstance(item, MessageItem) and isinstance(part, OutputText):
            item.content = [part]
        if isinstance(item, ReasoningItem) and isinstance(part, ReasoningText) and text:
            item.content = [part]
            if self.seals_thoughts:
                item.encrypted_content = sealed(text)
        if isinstance(item, MessageItem | CallItem):
            item.status = "completed" if complete else "incomplete"
        yield Event("response.output_item.done", {"output_index": self.place, "item": item})

    def _part(self, text: str, logprobs: list[msgspec.Raw]) -> OutputText | ReasoningText | None:
        match self.item:
            case MessageItem():
                return OutputText(text, logprobs=logprobs)
            case ReasoningItem():
                return ReasoningText(text)
            case CallItem():
                return None


class OutputWriter:
    """Turns the pieces of one answer into events. ``items``: those that have started, in order; the last may be open.

    ``request_id``: what the ids of the items are made from. ``seals_thoughts``: they are also in ``encrypted_content``.
    """

    def __init__(self, request_id: str, *, seals_thoughts: bool = False) -> None:
        self._seals_thoughts = seals_thoughts
        self.items: list[Item] = []
        self._request_id = request_id
        self._open: _OpenItem | None = None
        self._pending_logprobs: list[msgspec.Raw] = []
        """Of tokens whose text is held back."""

    def events(self, pieces: tuple[Piece, ...], logprobs: list[msgspec.Raw]) -> Iterator[Event]:
        """The events of one delta. Its log-probabilities are in the first event that has text of a message; those of
        thoughts and calls are left out."""
        logprobs = self._pending_logprobs + logprobs
        self._pending_logprobs = [] if pieces else logprobs
        for piece in pieces:
            yield from self._piece_events(piece, logprobs)
            if isinstance(piece, Text):
                logprobs = []

    def end(self, complete: bool) -> Iterator[Event]:
        """End the open item, an empty message if there is none. ``complete``: False if the answer was cut."""
        if not self.items:
            yield from self._start(MessageItem(self._id("msg")))
        if self._pending_logprobs and self._is_open(MessageItem):
            yield from self._delta("", self._pending_logprobs)
        yield from self._end_item(complete)

    def _piece_events(self, piece: Piece, logprobs: list[msgspec.Raw]) -> Iterator[Event]:
        match piece:
            case Text(text):
                if not self._is_open(MessageItem):
                    yield from self._start(MessageItem(self._id("msg")))
                yield from self._delta(text, logprobs)
            case Reasoning(text):
                if not self._is_open(ReasoningItem):
                    yield from self._start(ReasoningItem(self._id("rs")))
                yield from self._delta(text)
            case CallStart(call, name):
                id = call_id("call", self._request_id, 0, call)
                yield from self._start(CallItem(self._id("fc"), id, name))
            case CallArguments(_, json):
                yield from self._delta(json)
            case CallEnd():
                yield from self._end_item(True)

    def _is_open(self, kind: type[Item]) -> bool:
        return self._open is not None and isinstance(self._open.item, kind)

    def _delta(self, text: str, logprobs: list[msgspec.Raw] | None = None) -> Iterator[Event]:
        if self._open is not None:
            yield self._open.delta(text, logprobs or [])

    def _start(self, item: Item) -> Iterator[Event]:
        # A call that ends without CallEnd was cut short or is malformed.
        yield from self._end_item(self._open is not None and not isinstance(self._open.item, CallItem))
        self._open = _OpenItem(item, len(self.items), self._seals_thoughts)
        self.items.append(item)
        yield from self._open.start()

    def _end_item(self, complete: bool) -> Iterator[Event]:
        opened, self._open = self._open, None
        if opened is not None:
            yield from opened.end(complete)

    def _id(self, prefix: str) -> str:
        return call_id(prefix, self._request_id, 0, len(self.items))
