"""Conversations and pictures as bodies of chat completions."""

from __future__ import annotations

from typing import Any

import pytest

from mmserve.client.offline.conversation import body_of, is_one, paired

URL = "https://example.com/a.png"
IMAGE = {"type": "image_url", "image_url": {"url": URL}}
TEXT = {"type": "text", "text": "What is it?"}


def _body(conversation: Any, images: Any = None, schema: Any = None, **fields: Any) -> dict[str, Any]:
    return body_of("llava", conversation, images, schema, fields)


def test_a_text_is_the_users_message() -> None:
    assert _body("hello", temperature=0, seed=None) == {
        "model": "llava",
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 0,
    }


@pytest.mark.parametrize("images", [URL, [URL]])
def test_pictures_stand_before_the_text_of_the_last_question(images: Any) -> None:
    messages = [
        {"role": "user", "content": "first"},
        {"role": "assistant", "content": "A"},
        {"role": "user", "content": "What is it?"},
    ]
    found = _body(messages, images)["messages"]
    assert found == [*messages[:2], {"role": "user", "content": [IMAGE, TEXT]}]
    assert messages[2]["content"] == "What is it?", "the caller's messages stay as they are"


def test_pictures_are_added_to_those_of_the_message() -> None:
    message = {"role": "user", "content": [TEXT, IMAGE]}
    assert _body([message], [URL])["messages"][0]["content"] == [IMAGE, TEXT, IMAGE]


def test_a_schema_is_a_response_format() -> None:
    schema = {"type": "object"}
    found = _body("x", schema=schema)["response_format"]
    assert found == {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    with pytest.raises(ValueError, match="do not go together"):
        _body("x", schema=schema, response_format={"type": "json_object"})


@pytest.mark.parametrize("name", ["stream", "model", "messages"])
def test_fields_that_are_not_the_callers_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is not an argument"):
        body_of("llava", "x", None, None, {name: True})


def test_pictures_need_a_question() -> None:
    with pytest.raises(ValueError, match="message of the user"):
        _body([{"role": "system", "content": "x"}], URL)


@pytest.mark.parametrize(
    ("messages", "one"),
    [("x", True), ([{"role": "user", "content": "x"}], True), (["x", "y"], False), ([[{"role": "user"}]], False)],
)
def test_one_conversation_and_several(messages: Any, one: bool) -> None:
    assert is_one(messages) is one


@pytest.mark.parametrize("messages", [{"role": "user"}, 3, None, ["x", {"role": "user"}]])
def test_what_is_neither_is_refused(messages: Any) -> None:
    with pytest.raises(TypeError, match="messages"):
        is_one(messages)


def test_an_empty_list_has_no_answers() -> None:
    assert not is_one([])
    assert paired([], None) == []


def test_each_conversation_has_its_pictures() -> None:
    assert paired(["a", "b"], [URL, None]) == [("a", URL), ("b", None)]
    for wrong in ([URL], URL, 3):
        with pytest.raises(ValueError, match="each of the 2"):
            paired(["a", "b"], wrong)  # type: ignore[arg-type]
