"""Responses bodies to calls: what items become, what the answer repeats, and that every refusal names its field."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from mmserve.httpserver.api.openai.responses.events.answer import ResponsesAnswer
from mmserve.httpserver.api.openai.responses.events.objects import ResponseObject
from mmserve.httpserver.api.openai.responses.parse import RESPONSES
from mmserve.httpserver.api.openai.responses.request.fields import ResponsesRequest
from mmserve.httpserver.api.openai.responses.sealed import sealed
from mmserve.httpserver.api.protocol import ParsedRequest, parse_body
from mmserve.httpserver.call import GenerateCall, MediaRef
from mmserve.httpserver.conversation import Conversation, MediaPart, Message, TextPart, Tool, ToolCall, ToolChoice
from mmserve.httpserver.served_model import ServedModel
from mmserve.runtime.errors import ContextLengthExceeded, MmserveError
from tests.fakes.http.http_services import make_deployment
from tests.fakes.ranks.calls import messages_of

MODEL = replace(
    ServedModel.of(make_deployment("/nowhere")),
    takes_tools=True,
    template_variables=frozenset({"enable_thinking", "reasoning_effort"}),
)
PAINT = {"type": "function", "name": "paint", "parameters": {"type": "object"}, "strict": True}
CALL = {"type": "function_call", "call_id": "call_1", "name": "paint", "arguments": '{"a": 1}'}
SCHEMA = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}


def parse(served: ServedModel = MODEL, **fields: Any) -> ParsedRequest:
    body = json.dumps({"input": "hi", "model": "stub", "seed": 1} | fields).encode()
    return parse_body(RESPONSES, body, served, 1.5)


def read(**fields: Any) -> GenerateCall:
    return parse(**fields).call


def response(**fields: Any) -> ResponseObject:
    answer = parse(**fields).send_answer
    assert isinstance(answer, ResponsesAnswer)
    return answer.response


def conversation(**fields: Any) -> Conversation:
    (prompt,) = read(**fields).prompts
    assert isinstance(prompt, Conversation)
    return prompt


def test_a_text_is_a_message_of_the_user_after_the_instructions() -> None:
    call = read(instructions="be kind", max_output_tokens=7, stream=True, timeout=2, cache_salt="s")
    assert messages_of(call) == (Message("system", (TextPart("be kind"),)), Message("user", (TextPart("hi"),)))
    assert (call.sampling.max_tokens, call.stream, call.timeout_s, call.cache_salt) == (7, True, 2, "s")
    assert call.sampling.logprobs is None


def test_null_means_absent() -> None:
    names = [field.name for field in msgspec.structs.fields(ResponsesRequest)]
    nothing = dict.fromkeys(set(names) - {"input", "model", "seed"})
    assert len(nothing) > 30
    assert msgspec.structs.replace(read(**nothing), request_id="") == msgspec.structs.replace(read(), request_id="")


def test_items_become_turns() -> None:
    items = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "input_text", "text": "draw"}], "unknown": 1},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "well"}], "phase": "x"},
        CALL,
        CALL | {"call_id": "call_2", "id": "fc_2", "status": "completed"},
        {"type": "function_call_output", "call_id": "call_2", "output": "done"},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"type": "message", "role": "assistant", "content": "yes"},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
    ]
    assert messages_of(read(input=items)) == (
        Message("system", (TextPart("be brief"),)),
        Message("user", (TextPart("draw"),)),
        Message(
            "assistant",
            (TextPart("well"),),
            reasoning="hm",
            tool_calls=(ToolCall("call_1", "paint", '{"a": 1}'), ToolCall("call_2", "paint", '{"a": 1}')),
        ),
        Message("tool", (TextPart("done"),), tool_call_id="call_2"),
        Message("assistant", (TextPart("no"),)),
        Message("assistant", (TextPart("yes"),)),
    )


def test_images_are_numbered_in_messages_and_in_outputs_of_functions() -> None:
    image = {"type": "input_image", "image_url": "data:a", "detail": "low"}
    long = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 20_000}
    output = {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": [long, {"type": "input_text", "text": "t"}],
    }
    call = read(input=[{"role": "user", "content": [image]}, CALL, output])
    assert messages_of(call)[0].content == (MediaPart(0),)
    assert messages_of(call)[2].content == (MediaPart(1), TextPart("t"))
    assert call.media[0] == MediaRef("data:a", "input[0].content[0].image_url")
    assert call.media[1].url == "data:image/png;base64,"
    assert len(call.media[1].data or b"") == 20_000


def test_tools_and_the_choice_among_them() -> None:
    asked = conversation(tools=[PAINT], tool_choice="required", parallel_tool_calls=False)
    assert asked.tools == (Tool("paint", "", '{"type":"object"}', True),)
    assert (asked.tool_choice, asked.parallel_tool_calls) == (ToolChoice("required"), False)
    named = {"type": "function", "name": "paint"}
    assert conversation(tools=[PAINT], tool_choice=named).tool_choice == ToolChoice("required", ("paint",))
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [named]}
    assert conversation(tools=[PAINT], tool_choice=allowed).tool_choice == ToolChoice("auto", ("paint",))
    assert conversation(tools=[PAINT], tool_choice="none").tool_choice == ToolChoice("none")


def test_a_schema_becomes_a_grammar() -> None:
    assert read(text={"format": SCHEMA}).sampling.grammar
    assert read(text={"format": SCHEMA}).grammar_param == "text.format.schema"
    assert read(text={"format": {"type": "json_object"}}).sampling.grammar
    assert not read(text={"format": {"type": "text"}, "verbosity": "medium"}).sampling.grammar


@pytest.mark.parametrize("encrypted", [sealed("Hm."), "gAAAAB", "mmserve.!", None])
def test_thoughts_are_read_from_what_this_server_sealed(encrypted: str | None) -> None:
    thoughts = {"type": "reasoning", "summary": [], "encrypted_content": encrypted}
    items = [{"role": "user", "content": "hi"}, thoughts, {"role": "assistant", "content": "Yes."}]
    message = messages_of(read(input=items))[-1]
    assert (message.reasoning, message.content) == ("Hm." if encrypted == sealed("Hm.") else "", (TextPart("Yes."),))


def test_reasoning_effort_reaches_the_template() -> None:
    kwargs = json.loads(conversation(reasoning={"effort": "low", "summary": "auto"}).template_kwargs)
    assert kwargs == {"enable_thinking": True, "reasoning_effort": "low"}


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [({"top_logprobs": 3}, 3), ({"include": ["message.output_text.logprobs"]}, 0), ({"top_logprobs": 0}, None)],
)
def test_log_probabilities_are_asked_for_in_two_ways(fields: dict[str, Any], logprobs: int | None) -> None:
    assert read(**fields).sampling.logprobs == logprobs


def test_the_response_repeats_the_request() -> None:
    repeated = {
        "instructions": "be kind",
        "max_output_tokens": 9,
        "max_tool_calls": 2,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "prompt_cache_key": "key",
        "safety_identifier": "id",
        "temperature": 0.5,
        "tool_choice": "required",
        "top_logprobs": 1,
        "top_p": 0.5,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "user": "u",
    }
    found = json.loads(msgspec.json.encode(response(**repeated, tools=[PAINT], text={"format": SCHEMA})))
    assert {name: found[name] for name in repeated} == repeated
    assert found["tools"] == [PAINT | {"description": None}]
    assert found["text"]["format"] == SCHEMA | {"description": None, "strict": False}
    assert (found["status"], found["output"], found["usage"], found["store"]) == ("in_progress", [], None, False)
    assert found["id"].startswith("resp_")
    assert read(instructions="x" * 5000).echo_nbytes > read().echo_nbytes + 5000


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"role": "king", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": []}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [5]}]}, "input[0].content[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].file_id",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].image_url"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        ({"input": [{"type": ["x"]}]}, "input[0].type"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"input": [{"id": 5}]}, "input[0].id"),
        ({"input": [{"type": "compaction", "encrypted_content": "gAAA"}]}, "input[0].encrypted_content"),
        ({"input": [CALL | {"name": ""}]}, "input[0].name"),
        ({"input": [CALL | {"call_id": None}]}, "input[0].call_id"),
        ({"input": [CALL | {"arguments": {}}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "call_id": "call_9", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "reasoning", "content": "x"}]}, "input[0].content"),
        ({"input": [{"type": "reasoning", "content": [{"type": "image"}]}]}, "input[0].content[0].type"),
        ({"tools": 5}, "tools"),
        ({"tools": [5]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [PAINT | {"name": "a b"}]}, "tools[0].name"),
        ({"tools": [PAINT | {"parameters": []}]}, "tools[0].parameters"),
        ({"tools": [PAINT, PAINT]}, "tools[1].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [PAINT], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [PAINT], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tools": [PAINT], "tool_choice": {"type": "function", "name": "b"}}, "tool_choice.name"),
        ({"tools": [PAINT], "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.tools"),
        ({"tools": [PAINT], "tool_choice": {"type": "allowed_tools", "mode": "x"}}, "tool_choice.mode"),
        ({"text": {"format": "json"}}, "text.format"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": SCHEMA | {"strict": "yes"}}}, "text.format.strict"),
        ({"text": {"verbosity": "high"}}, "text.verbosity"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"truncation": "middle"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True, "store": False}, "background"),
        ({"previous_response_id": "x" * 600}, "previous_response_id"),
        ({"model": None}, "model"),
        ({"model": "gpt"}, "model"),
    ],
)
def test_a_refusal_names_the_field(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(MmserveError) as caught:
        parse(**fields)
    assert caught.value.param == param
    assert 400 <= caught.value.status < 500


def test_a_template_without_tools_or_switch_for_reasoning_is_said() -> None:
    plain = replace(MODEL, takes_tools=False, template_variables=frozenset())
    for fields, param in (({"tools": [PAINT]}, "tools"), ({"reasoning": {"effort": "low"}}, "reasoning.effort")):
        with pytest.raises(MmserveError) as caught:
            parse(plain, **fields)
        assert caught.value.param == param


def test_more_items_than_the_context_has_tokens_are_refused() -> None:
    with pytest.raises(ContextLengthExceeded) as caught:
        read(input=[{"role": "user", "content": "x"}] * (MODEL.max_model_len // 2 + 1))
    assert caught.value.param == "input"
