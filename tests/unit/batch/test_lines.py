"""Lines of batch files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mmserve.batch.lines import BatchLine, LineError, done_by, error_line, parse_line, response_line, tokens_of

LINE = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [1, 2.50]}}
PARSED = BatchLine(3, "a", "/v1/chat/completions", b'{"messages": [1, 2.50]}')


def _text(**changes: Any) -> bytes:
    return json.dumps({**LINE, **changes}).encode()


def test_the_body_stays_as_it_was_written() -> None:
    text = b'{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [1, 2.50]}}\n'
    assert parse_line(3, text) == PARSED


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        (b"{", "invalid_json_line", "no JSON"),
        (b'"\xff"', "invalid_request", "object"),
        (b"[]", "invalid_request", "Expected `object`"),
        (_text(custom_id=3), "invalid_request", r"custom_id"),
        (_text(custom_id=""), "invalid_request", r"custom_id"),
        (_text(custom_id="a" * 513), "invalid_request", r"custom_id"),
        (_text(method="GET"), "invalid_method", "POST"),
        (_text(url="/metrics"), "invalid_url", "/v1/embeddings"),
        (_text(more=1), "invalid_request", "more"),
        (_text(body={"stream": True}), "invalid_request", "stream does not go"),
        (_text(body={"background": True}), "invalid_request", "background does not go"),
        (json.dumps({"custom_id": "a"}).encode(), "invalid_request", "method"),
    ],
)
def test_a_line_that_cannot_be_sent_says_why(text: bytes, code: str, says: str) -> None:
    with pytest.raises(LineError, match=says) as caught:
        parse_line(1, text)
    assert caught.value.code == code


@pytest.mark.parametrize("body", [{"stream": False}, {"stream": "maybe"}, [1]])
def test_a_body_is_the_endpoints_matter(body: Any) -> None:
    assert json.loads(parse_line(1, _text(body=body)).body) == body


def test_a_response_is_repeated_in_one_line() -> None:
    line = response_line(PARSED, 200, "r1", b'{"id": 1.50,\n "text": "a\\nb"}')
    assert line.count(b"\n") == 1
    found = json.loads(line)
    assert found.pop("id").startswith("batch_req_")
    assert found == {
        "custom_id": "a",
        "response": {"status_code": 200, "request_id": "r1", "body": {"id": 1.5, "text": "a\nb"}},
        "error": None,
    }


@pytest.mark.parametrize("content", [b"<html>\n</html>", b"<html>", b"\xff", b""])
def test_a_response_that_is_no_json_is_a_text(content: bytes) -> None:
    line = response_line(PARSED, 502, "", content)
    assert json.loads(line)["response"]["body"] == content.decode(errors="replace")


def test_an_error_has_no_response() -> None:
    found = json.loads(error_line("a", LineError("batch_expired", "too late")))
    assert found["response"] is None
    assert found["error"] == {"code": "batch_expired", "message": "too late"}


def test_results_name_their_line() -> None:
    assert done_by(response_line(PARSED, 200, "", b"{}")) == "a"
    assert done_by(error_line("a", LineError("x", "y"))) == "a"
    assert done_by(error_line(None, LineError("x", "y"), 7)) == 7
    assert done_by(b"{") is None


def test_tokens_are_those_of_every_protocol() -> None:
    assert tokens_of(b'{"usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}}') == (3, 4)
    assert tokens_of(b'{"usage": {"input_tokens": 3, "output_tokens": 4}}') == (3, 4)
    for content in (b"{}", b'{"usage": null}', b"<html>", b'{"usage": 3}'):
        assert tokens_of(content) == (0, 0)
