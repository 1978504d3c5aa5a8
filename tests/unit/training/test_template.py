"""The packaged model's chat template: what training rows look like, whatever form a client's message has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mmserve
from mmserve.httpserver.prompt.chat_template import ChatTemplate

pytest.importorskip("tokenizers")

from training.tokens import TEMPLATE

IMAGE = {"type": "image"}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def rendered(*messages: tuple[str, Any]) -> str:
    return ChatTemplate(TEMPLATE, {}).render([{"role": role, "content": content} for role, content in messages])


def test_the_packaged_checkpoint_has_it() -> None:
    path = Path(mmserve.__file__).parent / "packaged" / "llava" / "chat_template.jinja"
    assert path.read_text() == TEMPLATE


@pytest.mark.parametrize(
    "content",
    [
        [IMAGE, text("What?")],
        [text(" What? "), IMAGE],
        [{"type": "image_url", "image_url": {"url": "data:,"}}, text("What?")],
    ],
)
def test_a_turns_picture_comes_before_its_text_with_its_mark(content: Any) -> None:
    assert rendered(("user", content)) == "<s><|user|><|first|><image>What?<|assistant|>"


def test_an_image_written_as_text_stays_as_it_is() -> None:
    assert rendered(("user", "<image>What?")) == "<s><|user|><image>What?<|assistant|>"


def test_texts_between_pictures_are_joined_in_order() -> None:
    content = [text("Look."), IMAGE, text("And at this."), IMAGE]
    assert rendered(("user", content)) == "<s><|user|><|first|><image><|second|><image>Look. And at this.<|assistant|>"


def test_turns_keep_their_own_pictures() -> None:
    conversation = [
        ("system", "Be polite."),
        ("user", [IMAGE, text("What?")]),
        ("assistant", "a star"),
        ("user", [text("And here?"), IMAGE]),
    ]
    expected = (
        "<s><|system|>Be polite.<|user|><|first|><image>What?<|assistant|>a star</s>"
        "<|user|><|second|><image>And here?<|assistant|>"
    )
    assert rendered(*conversation) == expected
