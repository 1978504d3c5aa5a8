"""The anthropic SDK: messages, streams, schemas, its tool runner, pictures, counts, models, errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.clients.questions import ASK_WEATHER, GREETING, Shape

pytestmark = pytest.mark.client("anthropic SDK", "anthropic")
HELLO: dict[str, Any] = {"model": "tiny", "max_tokens": 500, "messages": [{"role": "user", "content": "Hello"}]}
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}
PICTURE: dict[str, Any] = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
}


@pytest.fixture(scope="module")
def client(server_url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server_url, api_key="none", timeout=30) as client:
        yield client


def test_messages(client: anthropic.Anthropic) -> None:
    answer = client.messages.create(**HELLO)
    assert [block.text for block in answer.content if block.type == "text"] == [GREETING]
    assert answer.stop_reason == "end_turn"


def test_messages_streamed(client: anthropic.Anthropic) -> None:
    whole = client.messages.create(**HELLO)
    with client.messages.stream(**HELLO) as stream:
        pieces = list(stream.text_stream)
        streamed = stream.get_final_message()
    assert "".join(pieces) == streamed.content[0].text == whole.content[0].text == GREETING  # type: ignore[union-attr]
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_schema_parsed(client: anthropic.Anthropic) -> None:
    assert isinstance(client.messages.parse(**HELLO, output_format=Shape).parsed_output, Shape)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_tools_forced_although_the_model_only_greets(client: anthropic.Anthropic, choice: Any, stream: bool) -> None:
    request = {**HELLO, "tools": [WEATHER], "tool_choice": {**choice, "disable_parallel_tool_use": True}}
    if stream:
        with client.messages.stream(**request) as helper:
            answer = helper.get_final_message()
    else:
        answer = client.messages.create(**request)
    assert answer.stop_reason == "tool_use"
    (call,) = (block for block in answer.content if block.type == "tool_use")
    assert call.name == "get_weather"
    assert isinstance(call.input, dict)
    assert {name: type(value) for name, value in call.input.items()} == {"city": str, "days": int}


@pytest.mark.parametrize("stream", [False, True])
def test_tool_runner(client: anthropic.Anthropic, stream: bool) -> None:
    asked = []

    @anthropic.beta_tool
    def get_weather(city: str, days: int) -> str:
        """The weather of the next days."""
        asked.append((city, days))
        return "sunny"

    runner = client.beta.messages.tool_runner(
        model="tiny", max_tokens=500, messages=ASK_WEATHER, tools=[get_weather], stream=stream
    )
    answer = runner.until_done()
    assert [block.text for block in answer.content if block.type == "text"] == ["The result is: sunny"]
    assert asked == [("Oslo", 3)]


def test_count_tokens_and_pictures(client: anthropic.Anthropic) -> None:
    messages = [{"role": "user", "content": [PICTURE, {"type": "text", "text": "What is this?"}]}]
    count = client.messages.count_tokens(model="tiny", messages=messages)  # type: ignore[arg-type]
    usage = client.messages.create(model="tiny", max_tokens=500, messages=messages).usage  # type: ignore[arg-type]
    assert count.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_models(client: anthropic.Anthropic) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").display_name == "tiny"


def test_errors(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(**{**HELLO, "model": "other"})
    assert unknown.value.type == "not_found_error"
    assert unknown.value.request_id
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        client.messages.create(**{**HELLO, "max_tokens": 0})
