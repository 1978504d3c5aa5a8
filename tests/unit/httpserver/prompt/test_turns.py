"""Which tokens of a prompt come from which messages, for templates of several kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmserve.httpserver.conversation import Conversation, MediaPart, Message, TextPart
from mmserve.httpserver.prompt import turns as module
from mmserve.httpserver.prompt.builder import PromptBuilder
from mmserve.processors.interface import Expansion, Run
from tests.fakes.models.chat_models import CHATML, LLAMA_2, LLAVA_15, Kind, deployment_of, write_chat_model
from tests.fakes.ranks.calls import generate_call

IMAGE = Expansion("<image>", (Run(4, (1, 2, 2)),))
SYSTEM_IN_USER = (
    "{% for message in messages %}{% if message['role'] == 'system' %}{% if loop.last %}"
    "{{ raise_exception('a system message needs a user') }}{% endif %}"
    "{% elif message['role'] == 'user' %}<|im_start|>user\n"
    "{% if loop.index0 and messages[loop.index0 - 1]['role'] == 'system' %}{{ messages[loop.index0 - 1]['content'] }}\n"
    "{% endif %}{{ message['content'] }}<|im_end|>\n"
    "{% else %}<|im_start|>assistant\n{% if loop.last %}<think>\n{% endif %}{{ message['content'] }}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def said(role: str, *parts: str | MediaPart) -> Message:
    return Message(role, tuple(TextPart(part) if isinstance(part, str) else part for part in parts))


TALK = (said("system", "Be kind."), said("user", "Hello"), said("assistant", "Hi there"), said("user", "And now?"))


def _turns(
    directory: Path, kind: Kind, template: str, *messages: Message, images: int = 0
) -> list[tuple[list[int], str]]:
    """The messages and the text of each turn; its images as a star a row."""
    directory.mkdir(exist_ok=True)
    write_chat_model(directory, kind, template)
    builder = PromptBuilder(deployment_of(directory))
    call = generate_call(*messages)
    (conversation,) = call.prompts
    assert isinstance(conversation, Conversation)
    expansions = [IMAGE] * images
    media = generate_call(*messages).media
    ids = builder.token_ids(conversation, media, expansions)
    star = builder.tokenizer.token_to_id("<image>")
    found = builder.turns(conversation, media, expansions)
    assert [turn.start for turn in found] == [0, *(turn.end for turn in found[:-1])]
    assert found[-1].end == len(ids)

    def shown(id: int) -> str:
        return "*" if id == star else builder.tokenizer.decode([id], skip_special_tokens=False)

    return [(list(messages), "".join(map(shown, ids[start:end]))) for start, end, messages in found]


def test_each_message_has_its_tokens_and_the_template_the_rest(tmp_path: Path) -> None:
    assert _turns(tmp_path, "byte-level", CHATML, *TALK) == [
        ([0], "<|im_start|>system\nBe kind.<|im_end|>\n"),
        ([1], "<|im_start|>user\nHello<|im_end|>\n"),
        ([2], "<|im_start|>assistant\nHi there<|im_end|>\n"),
        ([3], "<|im_start|>user\nAnd now?<|im_end|>\n"),
        ([], "<|im_start|>assistant\n"),
    ]


def test_rows_of_images_count(tmp_path: Path) -> None:
    messages = [said("user", MediaPart(0), "one"), said("assistant", "yes"), said("user", MediaPart(1), "two")]
    texts = [text for _, text in _turns(tmp_path, "byte-level", CHATML, *messages, images=2)]
    assert texts[0] == "<|im_start|>user\n****\none<|im_end|>\n"
    assert texts[2] == "<|im_start|>user\n****\ntwo<|im_end|>\n"


def test_a_token_across_two_messages_belongs_to_the_later_one(tmp_path: Path) -> None:
    found = _turns(tmp_path, "sentencepiece", LLAVA_15, *TALK[1:])
    assert [messages for messages, _ in found if messages] == [[0], [1], [2]]
    assert found[-1][0] == []


def test_messages_that_a_template_writes_into_one_are_not_told_apart(tmp_path: Path) -> None:
    of_llama = _turns(tmp_path / "llama", "sentencepiece", LLAMA_2, *TALK)
    assert [messages for messages, _ in of_llama] == [[0, 1], [2], [3]]
    folded = _turns(tmp_path / "folded", "byte-level", SYSTEM_IN_USER, *TALK)
    assert folded == [
        ([0, 1], "<|im_start|>user\nBe kind.\nHello<|im_end|>\n"),
        ([2, 3], "<|im_start|>assistant\nHi there<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n"),
        ([], "<|im_start|>assistant\n"),
    ]


def test_what_the_template_writes_first_is_of_no_message(tmp_path: Path) -> None:
    template = "<|im_start|>You are a model.<|im_end|>\n" + CHATML
    assert _turns(tmp_path, "byte-level", template, TALK[1])[0] == ([], "<|im_start|>You are a model.<|im_end|>\n")


def test_a_conversation_that_costs_too_much_is_one_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_CHARS", 100)
    assert [messages for messages, _ in _turns(tmp_path, "byte-level", CHATML, *TALK)] == [[0, 1, 2, 3], []]
