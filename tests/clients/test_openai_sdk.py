"""The openai SDK: its helpers, tools, schemas, raw headers, errors and models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


class Shape(BaseModel):
    colour: Literal["red", "blue"]
    count: int
    label: str


@pytest.fixture(scope="module")
def client(server_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", timeout=30) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HELLO)
    assert answer.choices[0].message.content.startswith("Hello!")
    assert answer.choices[0].finish_reason == "stop"


def test_chat_streamed_with_two_choices_and_usage(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"n": 2, "stream_options": {"include_usage": True}}
    whole = client.chat.completions.create(model="tiny", messages=HELLO, n=2)
    with client.chat.completions.stream(model="tiny", messages=HELLO, **options) as stream:
        streamed = stream.get_final_completion()
    texts = [[choice.message.content for choice in answer.choices] for answer in (whole, streamed)]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 2
    assert whole.usage is not None
    assert streamed.usage is not None
    assert whole.usage.total_tokens == streamed.usage.total_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_schema_parsed(client: openai.OpenAI, stream: bool) -> None:
    request: dict[str, Any] = {"model": "tiny", "messages": HELLO, "response_format": Shape}
    if stream:
        with client.chat.completions.stream(**request) as helper:
            answer = helper.get_final_completion()
    else:
        answer = client.chat.completions.parse(**request)
    assert isinstance(answer.choices[0].message.parsed, Shape)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", NAMED])
def test_tools_forced_although_the_model_only_greets(client: openai.OpenAI, choice: Any, stream: bool) -> None:
    request: dict[str, Any] = {"model": "tiny", "messages": HELLO, "tools": [WEATHER], "tool_choice": choice}
    request["parallel_tool_calls"] = False
    if stream:
        with client.chat.completions.stream(**request) as helper:
            found = helper.get_final_completion().choices[0]
    else:
        found = client.chat.completions.create(**request).choices[0]
    assert found.finish_reason == "tool_calls"
    (call,) = found.message.tool_calls or []
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "get_weather"
    assert (type(arguments["city"]), type(arguments["days"])) == (str, int)


def test_tools_called_and_answered(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the weather in 'Oslo' for 3 days?"}]
    first = client.chat.completions.create(model="tiny", messages=messages, tools=[WEATHER]).choices[0].message
    (call,) = first.tool_calls or []
    assert json.loads(call.function.arguments) == {"city": "Oslo", "days": 3}
    messages += [first, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    second = client.chat.completions.create(model="tiny", messages=messages, tools=[WEATHER]).choices[0].message
    assert second.content == "The result is: sunny"


@pytest.mark.parametrize("stream", [False, True])
def test_responses(client: openai.OpenAI, stream: bool) -> None:
    if stream:
        with client.responses.stream(model="tiny", input="Hello") as helper:
            answer = helper.get_final_response()
    else:
        answer = client.responses.create(model="tiny", input="Hello")
    assert answer.output_text.startswith("Hello!")


def test_responses_schema_parsed(client: openai.OpenAI) -> None:
    assert isinstance(client.responses.parse(model="tiny", input="Hello", text_format=Shape).output_parsed, Shape)


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny", prompt=["one", "two"], n=2, max_tokens=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_raw_headers(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="tiny", messages=HELLO, extra_headers={"x-request-id": "mine"}
    )
    assert raw.headers["x-request-id"] == raw.parse()._request_id == "mine"


def test_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="tiny"):
        client.chat.completions.create(model="other", messages=HELLO)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=HELLO, temperature=9)
    assert (refused.value.param, refused.value.status_code) == ("temperature", 400)
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(model="tiny", messages=HELLO, response_format=Shape, max_tokens=2)
