"""A picture's question through each client: every one reads the same answer from the packaged model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from tests.clients.questions import CHAT, DATA, QUESTION, URL

pytest.importorskip("langchain_tests", reason="the whole server is started by make clients only")


def _chat(url: str) -> str | None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        answer = client.chat.completions.create(model="llava", messages=CHAT, temperature=0)
    return answer.choices[0].message.content


def _responses(url: str) -> str:
    content: list[Any] = [{"type": "input_image", "image_url": URL}, {"type": "input_text", "text": QUESTION}]
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none") as client:
        answer = client.responses.create(
            model="llava", input=[{"role": "user", "content": content}], temperature=0, store=False
        )
    return answer.output_text


def _messages(url: str) -> str:
    source = {"type": "base64", "media_type": "image/png", "data": DATA}
    content: list[Any] = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    with anthropic.Anthropic(base_url=url, api_key="none") as client:
        answer = client.messages.create(
            model="llava",
            max_tokens=50,
            messages=[{"role": "user", "content": content}],
            extra_body={"temperature": 0},
        )
    return "".join(block.text for block in answer.content if block.type == "text")


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(_chat, id="chat", marks=pytest.mark.client("openai SDK", "openai")),
        pytest.param(_responses, id="responses", marks=pytest.mark.client("openai SDK", "openai")),
        pytest.param(_messages, id="messages", marks=pytest.mark.client("anthropic SDK", "anthropic")),
    ],
)
def test_picture(packaged_url: str, ask: Callable[[str], str | None]) -> None:
    assert "green" in (ask(packaged_url) or "").lower()
