"""The openai SDK: its helpers, tools, schemas, raw headers, errors, retries, models and vectors."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
from openai.lib.responses_tool_runner import RegisteredFunction, ResponsesToolRunner

from tests.clients.questions import ASK_WEATHER, GREETING, HELLO, NAMED, WEATHER, Shape

pytestmark = pytest.mark.client("openai SDK", "openai")


@pytest.fixture(scope="module")
def client(server_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server_url}/v1", api_key="none", timeout=30) as client:
        yield client


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="tiny", messages=HELLO)
    assert answer.choices[0].message.content == GREETING
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


@pytest.mark.filterwarnings("ignore:Pydantic serializer")
def test_parsed_answer_repeated(client: openai.OpenAI) -> None:
    first = client.chat.completions.parse(model="tiny", messages=HELLO, response_format=Shape).choices[0].message
    for message in (first, first.to_dict()):
        answer = client.chat.completions.create(model="tiny", messages=[*HELLO, message, *HELLO])  # type: ignore[list-item]
        assert answer.choices[0].message.content == GREETING


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
    messages = [*ASK_WEATHER]
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
    assert answer.output_text == GREETING


def test_responses_schema_parsed(client: openai.OpenAI) -> None:
    assert isinstance(client.responses.parse(model="tiny", input="Hello", text_format=Shape).output_parsed, Shape)


@pytest.mark.parametrize(
    "mode", [{}, {"stream": True}, {"stream": True, "eager": True}], ids=["whole", "stream", "eager"]
)
def test_responses_tool_runner(client: openai.OpenAI, mode: dict[str, bool]) -> None:
    asked = []

    def weather(arguments: dict[str, object]) -> str:
        asked.append(arguments)
        return "sunny"

    tool = {"type": "function", **WEATHER["function"]}
    runner = ResponsesToolRunner(functions=[RegisteredFunction(tool, weather)])  # type: ignore[arg-type]
    answer = runner.run(client, {"model": "tiny", "input": ASK_WEATHER}, max_steps=3, **mode)
    assert answer.output_text == "The result is: sunny"
    assert asked == [{"city": "Oslo", "days": 3}]


def test_responses_continued_listed_and_deleted(client: openai.OpenAI) -> None:
    first = client.responses.create(model="tiny", input="Hello")
    second = client.responses.create(model="tiny", input="And now?", previous_response_id=first.id)
    assert client.responses.retrieve(second.id).output_text == second.output_text
    assert [item.type for item in client.responses.input_items.list(second.id)] == ["message"]
    count = client.responses.input_tokens.count(model="tiny", input="And now?", previous_response_id=first.id)
    assert second.usage is not None
    assert count.input_tokens == second.usage.input_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_responses_in_the_background(client: openai.OpenAI) -> None:
    response = client.responses.create(model="tiny", input="Hello", background=True)
    assert response.status == "queued"
    while response.status in ("queued", "in_progress"):
        response = client.responses.retrieve(response.id)
    assert (response.status, response.background) == ("completed", True)
    assert response.output_text.startswith("Hello!")
    assert client.responses.cancel(response.id).output_text == response.output_text


def test_responses_in_the_background_left_and_resumed(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "tiny", "input": "Hello", "background": True, "stream": True}
    with client.responses.create(**request) as stream:
        events = [event for event, _ in zip(stream, range(5), strict=False)]
    id = events[0].response.id
    with client.responses.retrieve(id, stream=True, starting_after=events[-1].sequence_number) as rest:
        events += rest
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert events[-1].response == client.responses.retrieve(id)
    with client.responses.stream(response_id=id) as helper:
        assert helper.get_final_response().output_text == events[-1].response.output_text
    with client.responses.stream(model="tiny", input="Hello", background=True) as helper:
        assert helper.get_final_response().status == "completed"


def test_responses_with_a_picture_continued_referred_to_and_compacted(client: openai.OpenAI) -> None:
    png = base64.b64encode(Path("examples/picture.png").read_bytes()).decode()
    picture = {"type": "input_image", "image_url": f"data:image/png;base64,{png}", "detail": "auto"}
    question: list[Any] = [{"role": "user", "content": [picture, {"type": "input_text", "text": "Hello"}]}]
    first = client.responses.create(model="tiny", input=question)
    second = client.responses.create(model="tiny", input="And now?", previous_response_id=first.id)
    asked = client.responses.input_items.list(first.id).data[0]
    items: list[Any] = [{"type": "item_reference", "id": one.id} for one in (asked, first.output[0])]
    same = client.responses.create(model="tiny", input=[*items, {"role": "user", "content": "And now?"}])
    assert first.usage is not None
    assert second.usage is not None
    assert same.usage is not None
    assert second.usage.input_tokens == same.usage.input_tokens > first.usage.input_tokens
    compact = client.responses.compact(model="tiny", previous_response_id=second.id)
    assert [item.type for item in compact.output] == ["message", "message", "compaction"]
    goes_on: list[Any] = [*(item.to_dict(warnings=False) for item in compact.output), *question]
    assert client.responses.create(model="tiny", input=goes_on).output_text


def test_completions_streamed(client: openai.OpenAI) -> None:
    request: dict[str, Any] = {"model": "tiny", "prompt": ["one", "two"], "max_tokens": 4, "echo": True, "logprobs": 1}
    texts = ["", ""]
    for chunk in client.completions.create(**request, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    whole = client.completions.create(**request)
    assert texts == [choice.text for choice in whole.choices]
    assert texts[0].startswith("one")


@pytest.mark.parametrize("form", ["float", "base64", openai.omit], ids=["float", "base64", "default"])
def test_embeddings(client: openai.OpenAI, form: Any) -> None:
    answer = client.embeddings.create(model="tiny", input=["one", "three"], encoding_format=form)
    assert [one.index for one in answer.data] == [0, 1]
    assert {type(one.embedding) for one in answer.data} == {str if form == "base64" else list}


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


def test_retries_after_a_refusal_that_says_when(client: openai.OpenAI) -> None:
    """The first attempt is answered by 429 on the way to the server."""
    answered = []

    class Busy(httpx2.HTTPTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            busy = httpx2.Response(429, headers={"retry-after-ms": "1"}, json={"error": {"message": "full"}})
            answered.append(super().handle_request(request) if answered else busy)
            return answered[-1]

    with client.with_options(http_client=httpx2.Client(transport=Busy()), max_retries=1) as patient:
        assert patient.chat.completions.create(model="tiny", messages=HELLO).choices[0].message.content
    assert [answer.status_code for answer in answered] == [429, 200]
