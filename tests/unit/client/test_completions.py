"""Events of a stream, read from its lines."""

from __future__ import annotations

import json

import pytest

from mmserve.client.completions import Event, Finished, Reasoning, ServerError, Text, read_events


def _chunk(**delta: str) -> str:
    return "data: " + json.dumps({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


END = 'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}'


def _read(*lines: str) -> list[Event]:
    return list(read_events(iter(lines)))


def test_text_reasoning_and_usage_are_read() -> None:
    usage = 'data: {"choices": [], "usage": {"prompt_tokens": 3}}'
    lines = (_chunk(role="assistant", content=""), "", _chunk(reasoning_content="hm"), _chunk(content="A"), END, usage)
    assert _read(*lines, "data: [DONE]") == [Reasoning("hm"), Text("A"), Finished("stop", {"prompt_tokens": 3})]


def test_comments_and_other_fields_of_a_stream_are_skipped() -> None:
    assert _read(": ping", "event: message", "id: 3", _chunk(content="A"), END) == [Text("A"), Finished("stop")]


@pytest.mark.parametrize("lines", [[], [_chunk(content="A")], [_chunk(content="A"), "data: [DONE]"]])
def test_a_stream_without_a_finish_reason_is_cut(lines: list[str]) -> None:
    with pytest.raises(ServerError, match="middle of the answer"):
        _read(*lines)


@pytest.mark.parametrize("error", ['{"message": "no room", "param": null}', '"no room"'])
def test_an_error_in_a_stream_is_raised(error: str) -> None:
    with pytest.raises(ServerError, match="no room"):
        _read(_chunk(content="A"), f'data: {{"error": {error}}}')


def test_what_is_no_json_is_an_error() -> None:
    with pytest.raises(ServerError, match="no JSON"):
        _read("data: <html>")
