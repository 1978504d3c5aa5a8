"""A picture's question through each client: every one reads the same answer from the packaged model."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

litellm = pytest.importorskip("litellm", reason="make clients installs LiteLLM")
PICTURE = Path(__file__).parents[2] / "examples" / "picture.png"
DATA = base64.b64encode(PICTURE.read_bytes()).decode()
URL = f"data:image/png;base64,{DATA}"
QUESTION = "What colour is the circle?"
CHAT: list[Any] = [
    {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": URL}}, {"type": "text", "text": QUESTION}],
    }
]


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


def _litellm(provider: str, path: str) -> Callable[[str], Any]:
    def ask(url: str) -> Any:
        answer = litellm.completion(
            model=f"{provider}/llava", messages=CHAT, api_base=url + path, api_key="none", temperature=0, max_tokens=50
        )
        return answer.choices[0].message.content

    return ask


@pytest.mark.parametrize(
    "ask",
    [
        pytest.param(_chat, id="chat", marks=pytest.mark.client("openai SDK", "openai")),
        pytest.param(_responses, id="responses", marks=pytest.mark.client("openai SDK", "openai")),
        pytest.param(_messages, id="messages", marks=pytest.mark.client("anthropic SDK", "anthropic")),
        pytest.param(
            _litellm("openai", "/v1"), id="litellm-openai", marks=pytest.mark.client("LiteLLM, openai", "litellm")
        ),
        pytest.param(
            _litellm("anthropic", ""), id="litellm-anthropic", marks=pytest.mark.client("LiteLLM, anthropic", "litellm")
        ),
    ],
)
def test_picture(packaged_url: str, ask: Callable[[str], str | None]) -> None:
    assert "red" in (ask(packaged_url) or "").lower()
