"""Pieces of an answer to output items and events: order, ids, and that the whole is the sum of its deltas."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from mmserve.httpserver.api.openai.responses.events.objects import Item
from mmserve.httpserver.api.openai.responses.events.writer import Event, OutputWriter
from mmserve.httpserver.output.parsing.pieces import CallArguments, CallEnd, CallStart, Piece, Reasoning, Text, join

ANSWER: tuple[Piece, ...] = (
    Reasoning("so "),
    Reasoning("it is"),
    Text("I "),
    Text("paint"),
    CallStart(0, "paint"),
    CallArguments(0, '{"a"'),
    CallArguments(0, ": 1}"),
    CallEnd(0),
    CallStart(1, "paint"),
    CallArguments(1, "{}"),
    CallEnd(1),
)


def write(pieces: tuple[Piece, ...], *, complete: bool = True) -> tuple[list[Event], list[Item]]:
    """The events, as they would be encoded when they are made, and the items at the end."""
    writer = OutputWriter("request")
    events = [event for piece in pieces for event in map(_encoded, writer.events((piece,), []))]
    events += map(_encoded, writer.end(complete))
    return events, writer.items


def _encoded(event: Event) -> Event:
    return Event(event.type, plain(event.fields))


def plain(value: Any) -> Any:
    """The value as a client reads it."""
    return msgspec.json.decode(msgspec.json.encode(value))


def names(events: list[Event]) -> list[str]:
    return [event.type.removeprefix("response.") for event in events]


def test_the_events_of_each_kind_of_item_in_order() -> None:
    events, _ = write(ANSWER)
    text = ["output_item.added", "content_part.added"]
    end = ["content_part.done", "output_item.done"]
    call = ["function_call_arguments.delta"]
    done = ["function_call_arguments.done", "output_item.done"]
    assert names(events) == [
        *(*text, "reasoning_text.delta", "reasoning_text.delta", "reasoning_text.done", *end),
        *(*text, "output_text.delta", "output_text.delta", "output_text.done", *end),
        *("output_item.added", *call, *call, *done),
        *("output_item.added", *call, *done),
    ]


def test_items_begin_empty_and_are_at_the_end_what_was_said_to_be_done() -> None:
    events, items = write(ANSWER)
    added = [event.fields["item"] for event in events if event.type.endswith("item.added")]
    done = [event.fields["item"] for event in events if event.type.endswith("item.done")]
    assert done == plain(items)
    assert [item["id"] for item in added] == [item["id"] for item in done]
    assert len({item["id"] for item in done}) == 4
    assert added[0]["content"] == added[1]["content"] == []
    assert added[2]["arguments"] == ""
    assert (added[1]["status"], added[2]["status"]) == ("in_progress", "in_progress")
    assert done[0] == {
        "type": "reasoning",
        "id": added[0]["id"],
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "so it is"}],
    }
    assert done[2]["arguments"] == '{"a": 1}'
    assert done[2]["call_id"] == added[2]["call_id"] != done[3]["call_id"]
    places = [event.fields["output_index"] for event in events if event.type.endswith("item.added")]
    assert places == [0, 1, 2, 3]


def test_an_answer_without_pieces_is_an_empty_message() -> None:
    events, items = write(())
    assert names(events)[-2:] == ["content_part.done", "output_item.done"]
    assert [item["content"][0]["text"] for item in plain(items)] == [""]


def test_what_was_cut_is_incomplete() -> None:
    _, (message,) = write((Text("half"),), complete=False)
    assert plain(message)["status"] == "incomplete"
    _, (malformed, message) = write((CallStart(0, "f"), CallArguments(0, "{"), Text("sorry")))
    assert plain(malformed)["status"] == "incomplete"
    assert plain(message)["status"] == "completed"


def test_log_probabilities_are_with_the_text_of_messages() -> None:
    writer, one, two, three = OutputWriter("request"), *(msgspec.Raw(b"%d" % n) for n in (1, 2, 3))
    events = [*writer.events((Reasoning("r"), Text("a"), Text("b")), [one])]
    deltas = [event.fields["logprobs"] for event in events if event.type.endswith("output_text.delta")]
    assert deltas == [[one], []]
    assert [*writer.events((), [two])] == []  # its text is held back
    (event,) = writer.events((Text("c"),), [three])
    assert plain(event.fields["logprobs"]) == [2, 3]
    assert [event.type for event in writer.events((), [one])] == []
    ended = [*writer.end(True)]
    assert plain(ended[0].fields["logprobs"]) == [1]
    assert plain(writer.items[1])["content"][0] == {
        "type": "output_text",
        "text": "abc",
        "annotations": [],
        "logprobs": [1, 2, 3, 1],
    }
    thoughts = OutputWriter("request")
    [*thoughts.events((Reasoning("r"),), [one])]
    [*thoughts.end(True)]
    assert len(thoughts.items) == 1


_PIECES = st.lists(st.sampled_from("rtc"), max_size=8)


@given(_PIECES, st.data())
def test_the_items_do_not_depend_on_how_the_answer_was_split(kinds: list[str], data: Any) -> None:
    pieces: list[Piece] = []
    for number, kind in enumerate(kinds):
        text = data.draw(st.text(min_size=1, max_size=5))
        if kind == "c":
            call = kinds[:number].count("c")
            pieces += [CallStart(call, "f"), *(CallArguments(call, one) for one in text), CallEnd(call)]
        else:
            pieces += [(Reasoning if kind == "r" else Text)(one) for one in text]
    _, split = write(tuple(pieces))
    _, whole = write(tuple(join(pieces)))
    assert plain(split) == plain(whole)
