"""Answers read from responses."""

from __future__ import annotations

import json

import pytest

from mmserve.client.completions import ServerError
from mmserve.client.offline.answer import read_answer
from mmserve.runtime.patience import Reply


def test_text_tokens_and_reason_are_read() -> None:
    message = {"role": "assistant", "content": "green", "reasoning_content": "hm", "tool_calls": [{"id": "1"}]}
    response = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"completion_tokens": 3}}
    answer = read_answer(Reply(200, json.dumps(response).encode()), 0.5)
    assert (answer.text, str(answer), answer.reasoning) == ("green", "green", "hm")
    assert (answer.finish_reason, answer.usage, answer.seconds) == ("stop", {"completion_tokens": 3}, 0.5)
    assert answer.tool_calls == [{"id": "1"}]
    assert answer.response == response
    assert answer.error is None


def test_an_answer_without_text_is_empty() -> None:
    response = {"choices": [{"message": {"content": None}, "finish_reason": "tool_calls"}]}
    answer = read_answer(Reply(200, json.dumps(response).encode()), 0.5)
    assert (answer.text, answer.tool_calls, answer.usage) == ("", (), {})


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply(400, b'{"error": {"message": "temperature is too high"}}'), "HTTP 400: temperature is too high"),
        (Reply(502, b"<html>bad gateway"), "HTTP 502: <html>"),
        (Reply(200, b"<html>"), "no chat completion"),
        (Reply(200, b'{"choices": []}'), "no chat completion"),
    ],
)
def test_what_is_no_answer_is_an_error(reply: Reply, says: str) -> None:
    with pytest.raises(ServerError, match=says):
        read_answer(reply, 0)
