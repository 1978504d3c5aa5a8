"""What a body may cost: bytes and values that are parsed, and the thread that parses them. No time is measured."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from mmserve.httpserver.api import json_limits
from mmserve.httpserver.api.json_limits import QUICK_NBYTES, max_json_nbytes
from mmserve.httpserver.api.openai.chat import request as chat
from mmserve.httpserver.api.protocol import parse_request
from mmserve.httpserver.served_model import ServedModel
from mmserve.runtime.errors import ContextLengthExceeded, InvalidRequest, MmserveError
from tests.fakes.http.http_services import make_deployment
from tests.fakes.ranks.calls import messages_of, parse_chat

MODEL = ServedModel.of(make_deployment("/nowhere"))
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * 1_000_000}}
Parsed = list[tuple[int, threading.Thread]]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Parsed:
    """Length of each piece of JSON that is parsed, and the thread that does it."""
    seen: Parsed = []
    decode = chat.decode

    def record(body: bytes | bytearray, type_: Any) -> Any:
        seen.append((len(body), threading.current_thread()))
        return decode(body, type_)

    monkeypatch.setattr(chat, "decode", record)
    return seen


def body_of(*parts: Any, **fields: Any) -> bytes:
    return json.dumps({"model": "stub", "messages": [{"role": "user", "content": list(parts)}], **fields}).encode()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": "many"}, "n"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"model": "other"}, "model"),
    ],
)
def test_a_wrong_field_beside_pictures_does_not_parse_the_pictures(
    parsed: Parsed, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(MmserveError) as refused:
        parse_chat(body_of(PICTURE, PICTURE, **fields), MODEL)
    assert refused.value.param == param
    assert sum(nbytes for nbytes, _ in parsed) < 20_000


def test_a_picture_in_the_place_of_a_text_is_named_as_it_was_sent(parsed: Parsed) -> None:
    with pytest.raises(InvalidRequest, match="type 'data:image/png"):
        parse_chat(body_of({"type": PICTURE["image_url"]["url"]}), MODEL)  # type: ignore[index]
    assert sum(nbytes for nbytes, _ in parsed) < 20_000


def test_pictures_as_text_count_as_text(parsed: Parsed) -> None:
    with pytest.raises(ContextLengthExceeded):
        parse_chat(body_of({"type": "text", "text": PICTURE["image_url"]["url"]}), MODEL)  # type: ignore[index]
    assert sum(nbytes for nbytes, _ in parsed) < 20_000


@pytest.mark.parametrize("pictures", [0, 1])
def test_text_that_cannot_fit_the_context_is_refused_before_it_is_parsed(parsed: Parsed, pictures: int) -> None:
    text = {"type": "text", "text": "x" * max_json_nbytes(MODEL.max_model_len)}
    with pytest.raises(ContextLengthExceeded) as refused:
        parse_chat(body_of(*[PICTURE] * pictures, text), MODEL)
    assert refused.value.param == "messages"
    assert not parsed


@pytest.mark.parametrize("item", ["[]", '{"a":{}}', "1"])
def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(parsed: Parsed, item: str) -> None:
    body = f'{{"messages":[{",".join([item] * 210_000)}]}}'.encode()
    assert len(body) > QUICK_NBYTES
    with pytest.raises(InvalidRequest):
        parse_chat(body, MODEL)
    assert not parsed


def test_brackets_and_commas_of_a_text_are_not_values(parsed: Parsed) -> None:
    text = '[{"a": [1, 2, 3]}, "\\\\", ]' * 8000
    call = parse_chat(body_of({"type": "text", "text": text}), MODEL)
    assert messages_of(call)[0].content[0].text == text  # type: ignore[union-attr]
    assert json_limits._cost(text.encode()) > 200_000


def test_long_json_is_parsed_in_a_thread_and_short_json_beside_pictures_is_not(parsed: Parsed) -> None:
    async def test() -> None:
        short = body_of(PICTURE, {"type": "text", "text": "what?"})
        long = body_of({"type": "text", "text": "x" * QUICK_NBYTES})
        await parse_request(chat.CHAT, short, MODEL, 0.0)
        assert [thread is threading.current_thread() for _, thread in parsed] == [True]
        await parse_request(chat.CHAT, long, MODEL, 0.0)
        assert [thread is threading.current_thread() for _, thread in parsed] == [True, False]

    asyncio.run(test())
