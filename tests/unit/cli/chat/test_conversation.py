"""The state of one conversation."""

from __future__ import annotations

import pytest

from mmserve.cli.chat.conversation import ChatError, Conversation


def test_a_body_holds_system_prompt_messages_and_settings() -> None:
    conversation = Conversation(system="Be short.")
    conversation.ask("What is it?", ["data:image/png;base64,AAAA"])
    conversation.answered("A cat.")
    conversation.ask("And its colour?")
    conversation.set("temperature", "0.5")
    conversation.set("stop", "END")
    conversation.schema = {"type": "object"}
    body = conversation.body("m")
    assert [message["role"] for message in body["messages"]] == ["system", "user", "assistant", "user"]
    assert body["messages"][1]["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "text", "text": "What is it?"},
    ]
    assert (body["model"], body["temperature"], body["stop"]) == ("m", 0.5, "END")
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}


def test_settings_are_json_or_text_and_can_be_removed() -> None:
    conversation = Conversation()
    for name, written, value in (
        ("a", "1", 1),
        ("b", "true", True),
        ("c", '["x"]', ["x"]),
        ("d", "plain text", "plain text"),
    ):
        conversation.set(name, written)
        assert conversation.settings[name] == value
    conversation.set("a", "")
    assert "a" not in conversation.settings
    with pytest.raises(ChatError, match="a is not set"):
        conversation.set("a", "")


@pytest.mark.parametrize("name", ["messages", "model", "stream", "n"])
def test_a_setting_replaces_no_field_of_the_conversation(name: str) -> None:
    with pytest.raises(ChatError, match=name):
        Conversation().set(name, "1")


def test_undo_forgets_the_last_question_and_its_answer() -> None:
    conversation = Conversation()
    conversation.ask("one")
    conversation.answered("1")
    conversation.ask("two")
    conversation.answered("2")
    assert conversation.undo()["content"] == "two"
    assert [message["content"] for message in conversation.messages] == ["one", "1"]
    conversation.undo()
    assert conversation.messages == []
    with pytest.raises(ChatError, match="no question"):
        conversation.undo()


def test_retry_forgets_the_answer_alone() -> None:
    conversation = Conversation()
    conversation.ask("one")
    conversation.answered("1")
    conversation.retry()
    assert [message["content"] for message in conversation.messages] == ["one"]
    conversation.retry()  # the answer failed: there is none to forget
    assert [message["content"] for message in conversation.messages] == ["one"]


def test_a_conversation_is_read_as_it_was_written() -> None:
    conversation = Conversation("Be short.", {"seed": 3}, {"type": "string"})
    conversation.ask("Größe?", ["http://example.com/a.png"])
    assert Conversation.from_json(conversation.to_json()) == conversation


def test_a_list_of_messages_is_a_conversation() -> None:
    assert Conversation.from_json('[{"role": "user", "content": "hi"}]').messages == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "text",
    ["", "{", "3", '{"other": 1}', '{"messages": {}}', '{"system": 3}', '["hi"]', '{"messages": [{"content": 1}]}'],
)
def test_what_is_no_conversation_is_refused(text: str) -> None:
    with pytest.raises(ChatError):
        Conversation.from_json(text)
