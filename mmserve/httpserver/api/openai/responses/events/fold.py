"""One response under way: from deltas to events, and to the response itself as it stands after each of them. Pure.

A delta can be written as one line of a record and read again, so that the same events can be made a second time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from mmserve.httpserver.api.openai.responses.events.objects import (
    IncompleteDetails,
    ResponseError,
    ResponseObject,
    ResponseUsage,
)
from mmserve.httpserver.api.openai.responses.events.writer import Event, OutputWriter, error_event
from mmserve.httpserver.output.parsing.pieces import (
    CallArguments,
    CallEnd,
    CallStart,
    Piece,
    Reasoning,
    Text,
    characters,
)
from mmserve.httpserver.response_store.database import StoredItem, StoredOutput
from mmserve.httpserver.response_store.run_table import MakeOutput

ID_PREFIX = "resp_"
ENCRYPTED_THOUGHTS = "reasoning.encrypted_content"
_KINDS: tuple[type[Piece], ...] = (Text, Reasoning, CallStart, CallArguments, CallEnd)
_MAKE: tuple[Callable[[int, str], Piece], ...] = (
    lambda _, text: Text(text),
    lambda _, text: Reasoning(text),
    CallStart,
    CallArguments,
    lambda call, _: CallEnd(call),
)
"""Of each kind, from the number of the call and the characters."""
LOST = ResponseError("server_error", "the process that made the response has ended")


class _Line(msgspec.Struct, array_like=True):
    """A delta. ``pieces``: number of the kind, number of the call, characters."""

    pieces: list[tuple[int, int, str]]
    logprobs: list[msgspec.Raw]


def record_line(pieces: Sequence[Piece], logprobs: list[msgspec.Raw]) -> bytes:
    """A delta as a line, with its end."""
    written = [
        (_KINDS.index(type(piece)), 0 if isinstance(piece, Text | Reasoning) else piece.call, characters(piece))
        for piece in pieces
    ]
    return msgspec.json.encode(_Line(written, logprobs)) + b"\n"


def read_line(line: bytes) -> tuple[tuple[Piece, ...], list[msgspec.Raw]]:
    """The pieces and log-probabilities of a line of a record."""
    delta = msgspec.json.decode(line, type=_Line)
    return tuple(_MAKE[kind](call, text) for kind, call, text in delta.pieces), delta.logprobs


class Fold:
    """``response``: as it is now. Each method gives the events of what has happened."""

    def __init__(self, response: ResponseObject) -> None:
        self.response = msgspec.structs.replace(response)
        seals_thoughts = ENCRYPTED_THOUGHTS in (response.include or ())
        self._writer = OutputWriter(response.id.removeprefix(ID_PREFIX), seals_thoughts=seals_thoughts)

    def begin(self) -> Iterator[Event]:
        yield self._lifecycle("created")
        yield self._lifecycle(self.response.status)

    def start(self) -> Iterator[Event]:
        """A response that was queued is in progress."""
        self.response.status = "in_progress"
        yield self._lifecycle("in_progress")

    def add(self, pieces: tuple[Piece, ...], logprobs: list[msgspec.Raw]) -> Iterator[Event]:
        yield from self._writer.events(pieces, logprobs)

    def end(self, *, cut: bool, usage: ResponseUsage | None) -> Iterator[Event]:
        yield from self._writer.end(complete=not cut)
        if cut:
            self.response.incomplete_details = IncompleteDetails("max_output_tokens")
        else:
            self.response.completed_at = int(time.time())
        yield self._final("incomplete" if cut else "completed", usage)

    def fail(self, error: ResponseError, shown: dict[str, Any], usage: ResponseUsage | None) -> Iterator[Event]:
        """``shown``: the fields of the error."""
        yield from self._writer.end(complete=False)
        yield error_event(shown)
        self.response.error = error
        yield self._final("failed", usage)

    def cancel(self) -> Iterator[Event]:
        """The protocol has no event for it: streams end with the one of a response that is not complete."""
        yield from self._writer.end(complete=False)
        yield self._final("cancelled", None)

    def again(self, ended: ResponseObject) -> Iterator[Event]:
        """The last events of a response of which all deltas were added; the very last has ``ended`` itself."""
        match ended.status:
            case "failed":
                error = ended.error or LOST
                shown = {"type": "server_error", "code": error.code, "message": error.message, "param": None}
                *events, last = self.fail(error, shown, None)
            case "cancelled":
                *events, last = self.cancel()
            case status:
                *events, last = self.end(cut=status == "incomplete", usage=None)
        yield from events
        yield Event(last.type, {"response": ended})

    def _final(self, status: str, usage: ResponseUsage | None) -> Event:
        self.response.status, self.response.output, self.response.usage = status, self._writer.items, usage
        return self._lifecycle("incomplete" if status == "cancelled" else status)

    def _lifecycle(self, name: str) -> Event:
        return Event(f"response.{name}", {"response": self.response})


def without_output(ended: ResponseObject) -> ResponseObject:
    """A response as it was at first."""
    return msgspec.structs.replace(
        ended,
        status="queued" if ended.background else "in_progress",
        output=[],
        usage=None,
        completed_at=None,
        error=None,
        incomplete_details=None,
    )


def stored_output(response: ResponseObject, record: bytes | None = None) -> StoredOutput:
    """A response that has ended, as it is stored."""
    items = [StoredItem(item.id, msgspec.json.encode(item)) for item in response.output]
    return StoredOutput(response.status, msgspec.json.encode(response), items, record)


def cancelled(body: bytes, record: bytes) -> StoredOutput:
    """A MakeOutput: what there is of the response is kept."""
    fold = _of_record(body, record)
    for _ in fold.cancel():
        pass
    return stored_output(fold.response)


def failed(error: ResponseError) -> MakeOutput:
    """The MakeOutput of a response that ends with ``error``."""

    def make_output(body: bytes, record: bytes) -> StoredOutput:
        fold = _of_record(body, record)
        for _ in fold.fail(error, {"code": None, "message": None, "param": None}, None):
            pass
        return stored_output(fold.response)

    return make_output


lost = failed(LOST)
"""The MakeOutput of a response whose worker has ended."""


def _of_record(body: bytes, record: bytes) -> Fold:
    fold = Fold(msgspec.json.decode(body, type=ResponseObject))
    for line in record.splitlines():
        for _ in fold.add(*read_line(line)):
            pass
    return fold
