"""System messages in the middle of a conversation: kept in place, or made part of a neighbour."""

from __future__ import annotations

from mmserve.httpserver.conversation import MediaPart, Message, TextPart
from mmserve.httpserver.prompt.inline_system import fold_late_system
from mmserve.httpserver.prompt.template.chat_template import ChatTemplate
from tests.fakes.models.chat_models import CHATML, LLAMA_2, LLAVA_15

HOISTS = (
    "{% for m in messages if m.role == 'system' %}{{ m.content }}{% endfor %}"
    "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
)


def say(role: str, text: str, **fields: str) -> Message:
    return Message(role, (TextPart(text),), **fields)  # type: ignore[arg-type]


def folded(*messages: Message) -> list[tuple[str, str]]:
    return [(m.role, "".join(p.text for p in m.content if isinstance(p, TextPart))) for m in fold_late_system(messages)]


def test_it_becomes_part_of_the_turn_before_it() -> None:
    before = say("system", "s"), say("user", "a"), say("assistant", "b"), say("user", "c")
    assert folded(*before, say("system", "x")) == [
        ("system", "s"),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c\n\nx"),
    ]
    assert folded(*before) == [*folded(*before, say("system", "x"))[:3], ("user", "c")]


def test_it_never_stands_between_a_call_and_its_result() -> None:
    result = say("tool", "42", tool_call_id="t1")
    messages = fold_late_system((say("user", "a"), say("assistant", ""), say("system", "x"), result))
    assert [m.role for m in messages] == ["user", "assistant", "tool"]
    assert messages[2] == Message("tool", (TextPart("x\n\n42"),), tool_call_id="t1")


def test_without_a_neighbour_it_is_a_users_turn() -> None:
    assert folded(say("user", "a"), say("assistant", "b"), say("system", "x"), say("system", "y")) == [
        ("user", "a"),
        ("assistant", "b"),
        ("user", "x\n\ny"),
    ]
    assert folded(say("user", "a"), say("assistant", "b"), say("system", "x"), say("assistant", "c"))[2] == (
        "user",
        "x",
    )


def test_images_keep_their_place() -> None:
    (user,) = fold_late_system((Message("user", (TextPart("a"), MediaPart(0))), say("system", "x")))
    assert user.content == (TextPart("a"), MediaPart(0), TextPart("x"))


def test_templates_are_asked_whether_they_render_it_in_its_place() -> None:
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    assert ChatTemplate(CHATML, tokens).takes_late_system
    assert ChatTemplate(LLAVA_15, tokens).takes_late_system
    assert not ChatTemplate(LLAMA_2, tokens).takes_late_system
    assert not ChatTemplate(HOISTS, tokens).takes_late_system
