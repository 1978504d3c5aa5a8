"""Events made from a record: the same, with the same numbers, as those that were sent while it was written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.httpserver.api.openai.responses.events.fold import (
    Fold,
    cancelled,
    failed,
    lost,
    read_line,
    record_line,
    stored_output,
    without_output,
)
from mmserve.httpserver.api.openai.responses.events.numbering import Numbering
from mmserve.httpserver.api.openai.responses.events.objects import ResponseError, ResponseObject
from mmserve.httpserver.api.openai.responses.events.writer import Event
from mmserve.httpserver.output.parsing.pieces import CallArguments, CallEnd, CallStart, Piece, Reasoning, Text

CALL = [CallStart(0, "f"), CallArguments(0, '{"a":'), CallArguments(0, " 1}"), CallEnd(0)]
DELTAS = st.lists(st.lists(st.one_of(st.text().map(Text), st.text().map(Reasoning)), max_size=3).map(tuple), max_size=6)


def sent(events: Sequence[Event]) -> list[Any]:
    numbered = Numbering()
    return [json.loads(numbered.sse(event).split(b"data: ", 1)[1]) for event in events]


def fold_of(deltas: Sequence[tuple[Piece, ...]], *, background: bool) -> tuple[Fold, list[Any], bytes]:
    """The response after these deltas, with the events and the record so far."""
    fold = Fold(ResponseObject("resp_1", 1, "m", status="queued" if background else "in_progress"))
    fold.response.background, numbered, events = background, Numbering(), []
    record = b""

    def send(made: Any) -> None:
        events.extend(json.loads(numbered.sse(event).split(b"data: ", 1)[1]) for event in made)

    send(fold.begin())
    if background:
        send(fold.start())
    for pieces in deltas:
        logprobs = [msgspec.Raw(b'{"token":"a"}')] if pieces else []
        send(fold.add(pieces, logprobs))
        record += record_line(pieces, logprobs)
    return fold, events, record


def again(body: bytes, record: bytes) -> list[Any]:
    """The events of a stored response."""
    ended = msgspec.json.decode(body, type=ResponseObject)
    fold, numbered, events = Fold(without_output(ended)), Numbering(), []

    def send(made: Any) -> None:
        events.extend(json.loads(numbered.sse(event).split(b"data: ", 1)[1]) for event in made)

    send(fold.begin())
    if ended.background:
        send(fold.start())
    for line in record.splitlines():
        send(fold.add(*read_line(line)))
    send(fold.again(ended))
    return events


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("background", [False, True])
@given(deltas=DELTAS)
def test_the_events_of_a_record_are_those_that_were_sent(
    cut: bool, background: bool, deltas: list[tuple[Piece, ...]]
) -> None:
    fold, events, record = fold_of([*deltas, tuple(CALL)], background=background)
    last = [*fold.end(cut=cut, usage=None)]
    made = events + [event | {"sequence_number": len(events) + event["sequence_number"]} for event in sent(last)]
    assert again(stored_output(fold.response).body, record) == made


@pytest.mark.parametrize(("make_output", "status"), [(cancelled, "cancelled"), (lost, "failed")])
def test_a_response_that_is_ended_by_another_worker_has_what_there_was_of_it(make_output: Any, status: str) -> None:
    fold, events, record = fold_of([(Reasoning("Hm."), Text("so")), (Text(" it"),)], background=True)
    body = msgspec.json.encode(fold.response)
    output = make_output(body, record)
    response = json.loads(output.body)
    assert (output.status, response["status"]) == (status, status)
    assert [item["content"][0]["text"] for item in response["output"]] == ["Hm.", "so it"]
    assert [item.id for item in output.items] == [item["id"] for item in response["output"]]
    assert response["output"][1]["status"] == "incomplete"
    replayed = again(output.body, record)
    assert replayed[: len(events)] == events
    assert replayed[-1]["response"] == response
    assert [event["sequence_number"] for event in replayed] == [*range(len(replayed))]
    names = [event["type"] for event in replayed[-2:]]
    assert names[-1] == ("response.incomplete" if status == "cancelled" else "response.failed")
    assert (names[0] == "error") == (status == "failed")


def test_a_failure_says_its_code_in_the_response_and_in_its_events() -> None:
    fold, _, record = fold_of([], background=True)
    error = ResponseError("rate_limit_exceeded", "too much")
    output = failed(error)(msgspec.json.encode(fold.response), record)
    assert json.loads(output.body)["error"] == {"code": "rate_limit_exceeded", "message": "too much"}
    event = again(output.body, record)[-2]
    assert event["code"] == event["error"]["code"] == "rate_limit_exceeded"


def test_events_up_to_a_number_are_left_out() -> None:
    numbered = Numbering(after=1)
    shown = [numbered.sse(Event("x", {})) for _ in range(4)]
    assert shown[:2] == [b"", b""]
    assert [json.loads(event.split(b"data: ")[1])["sequence_number"] for event in shown[2:]] == [2, 3]
