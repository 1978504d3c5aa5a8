"""LiteLLM with its OpenAI and Anthropic providers pointed at the server: whole answers, streams, tools, vectors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.clients.questions import ASK_WEATHER, CHAT, GREETING, HELLO, NAMED, WEATHER, Shape

litellm = pytest.importorskip("litellm", reason="make clients installs LiteLLM")
_PROVIDERS = [
    pytest.param("openai", marks=pytest.mark.client("LiteLLM, openai", "litellm")),
    pytest.param("anthropic", marks=pytest.mark.client("LiteLLM, anthropic", "litellm")),
]


@pytest.fixture
def options(server_url: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """Of litellm.completion, for one provider."""
    provider = request.param
    base = f"{server_url}/v1" if provider == "openai" else server_url
    return {"model": f"{provider}/tiny", "api_base": base, "api_key": "none", "max_tokens": 500}


each_provider = pytest.mark.parametrize("options", _PROVIDERS, indirect=True)


def _streamed(options: dict[str, Any]) -> Any:
    chunks = list(litellm.completion(**options, stream=True, stream_options={"include_usage": True}))
    return litellm.stream_chunk_builder(chunks, messages=options["messages"])


@each_provider
@pytest.mark.parametrize("stream", [False, True])
def test_chat(options: dict[str, Any], stream: bool) -> None:
    options["messages"] = HELLO
    answer = _streamed(options) if stream else litellm.completion(**options)
    assert answer.choices[0].message.content == GREETING
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens > 0


@each_provider
@pytest.mark.parametrize("stream", [False, True])
def test_tools_called_and_answered(options: dict[str, Any], stream: bool) -> None:
    options |= {"messages": ASK_WEATHER, "tools": [WEATHER]}
    answer = _streamed(options) if stream else litellm.completion(**options)
    (call,) = answer.choices[0].message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Oslo", "days": 3})
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    options["messages"] = [*ASK_WEATHER, answer.choices[0].message.model_dump(), result]
    assert litellm.completion(**options).choices[0].message.content == "The result is: sunny"


@each_provider
def test_tool_forced(options: dict[str, Any]) -> None:
    answer = litellm.completion(**options, messages=HELLO, tools=[WEATHER], tool_choice=NAMED)
    (call,) = answer.choices[0].message.tool_calls
    assert set(json.loads(call.function.arguments)) == {"city", "days"}


@each_provider
def test_schema(options: dict[str, Any]) -> None:
    answer = litellm.completion(**options, messages=HELLO, response_format=Shape)
    Shape.model_validate_json(answer.choices[0].message.content)


@each_provider
def test_picture(options: dict[str, Any], server_url: str, packaged_url: str) -> None:
    options |= {
        "model": options["model"].replace("tiny", "llava"),
        "api_base": options["api_base"].replace(server_url, packaged_url),
        "max_tokens": 50,
    }
    answer = litellm.completion(**options, messages=CHAT, temperature=0)
    assert "green" in answer.choices[0].message.content.lower()


@each_provider
def test_errors(options: dict[str, Any]) -> None:
    options["model"] = options["model"].replace("tiny", "other")
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**options, messages=HELLO)


@pytest.mark.parametrize("options", _PROVIDERS[:1], indirect=True)
def test_embeddings(options: dict[str, Any]) -> None:
    del options["max_tokens"]
    answer = litellm.embedding(**options, input=["one", "three"])
    assert [len(one["embedding"]) for one in answer.data] == [8, 8]


@pytest.mark.parametrize("options", _PROVIDERS[:1], indirect=True)
@pytest.mark.parametrize("stream", [False, True])
def test_responses(options: dict[str, Any], stream: bool) -> None:
    del options["max_tokens"]
    answer = litellm.responses(**options, input="Hello", stream=stream)
    if stream:
        answer = next(event for event in answer if event.type == "response.completed").response
    assert answer.output[0].content[0].text == GREETING


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices of models are read from the package."""
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
