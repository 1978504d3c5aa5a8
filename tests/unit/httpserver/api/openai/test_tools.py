"""Tools in OpenAI's chat completions: the request's tools, the choice among them, and earlier calls."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.conversation import Conversation, TextPart, Tool, ToolCall, ToolChoice
from mmserve.httpserver.served_model import ServedModel
from mmserve.runtime.errors import InvalidRequest
from tests.fakes.http.http_services import make_deployment
from tests.fakes.ranks.calls import messages_of, parse_chat

USER = {"role": "user", "content": "What is the weather in Paris?"}
WEATHER = {"name": "weather", "description": "Tells it.", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": WEATHER}
CLOCK = {"type": "function", "function": {"name": "clock"}}
MODEL = replace(
    ServedModel.of(make_deployment("/nowhere")),
    takes_tools=True,
    template_variables=frozenset({"enable_thinking", "style"}),
)


def read(body: dict[str, Any]) -> GenerateCall:
    return parse_chat(json.dumps({"model": "stub", "messages": [USER]} | body).encode(), MODEL)


def conversation(body: dict[str, Any]) -> Conversation:
    (prompt,) = read(body).prompts
    assert isinstance(prompt, Conversation)
    return prompt


def test_tools_keep_their_schema_as_it_was_written() -> None:
    asked = conversation({"tools": [TOOL, CLOCK]})
    assert asked.tools == (
        Tool("weather", "Tells it.", json.dumps(WEATHER["parameters"])),
        Tool("clock"),
    )
    assert (asked.tool_choice, asked.parallel_tool_calls) == (ToolChoice("auto"), True)


def test_the_older_names_of_tools_mean_the_same() -> None:
    asked = conversation({"functions": [WEATHER], "function_call": {"name": "weather"}})
    assert asked == conversation(
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "weather"}}}
    )


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice("auto")),
        ("auto", ToolChoice("auto")),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        ({"type": "function", "function": {"name": "clock"}}, ToolChoice("required", ("clock",))),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [CLOCK]}},
            ToolChoice("auto", ("clock",)),
        ),
    ],
)
def test_choices(choice: Any, expected: ToolChoice) -> None:
    assert conversation({"tools": [TOOL, CLOCK], "tool_choice": choice}).tool_choice == expected


def test_a_conversation_with_calls_and_their_results() -> None:
    called = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Paris"}'}}
    picture = {"type": "image_url", "image_url": {"url": "data:x"}}
    messages = messages_of(
        read(
            {
                "messages": [
                    USER,
                    {"role": "assistant", "content": None, "tool_calls": [called], "reasoning_content": "Hm."},
                    {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "see"}, picture]},
                ]
            }
        )
    )
    assert messages[1].content == ()
    assert messages[1].reasoning == "Hm."
    assert messages[1].tool_calls == (ToolCall("call_1", "weather", '{"city": "Paris"}'),)
    assert (messages[2].role, messages[2].tool_call_id, len(messages[2].content)) == ("tool", "call_1", 2)


def test_reasoning_effort_becomes_the_templates_switch() -> None:
    assert conversation({"reasoning_effort": "none"}).template_kwargs == '{"enable_thinking":false}'
    asked = conversation({"reasoning_effort": "low", "chat_template_kwargs": {"style": "short"}})
    assert json.loads(asked.template_kwargs) == {"enable_thinking": True, "style": "short"}


CALL = {"id": "a", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [TOOL, TOOL]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": WEATHER | {"parameters": []}}]}, "tools[0].function.parameters"),
        ({"tools": [TOOL], "functions": [WEATHER]}, "functions"),
        ({"tools": [CLOCK | {"function": {"name": f"f{n}"}} for n in range(129)]}, "tools"),
        ({"tools": [TOOL], "tool_choice": "always"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": CLOCK}, "tool_choice.function.name"),
        ({"chat_template_kwargs": {"style": "x" * 20_000}}, "chat_template_kwargs"),
        ({"messages": [USER | {"tool_calls": [CALL]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            "messages[0].tool_calls[0].function.name",
        ),
        ({"messages": [{"role": "tool", "content": "5"}]}, "messages[0].tool_call_id"),
    ],
)
def test_every_refusal_names_its_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(body)
    assert refused.value.param == param


def test_a_model_whose_template_has_no_tools_refuses_them() -> None:
    with pytest.raises(InvalidRequest, match="takes no tools") as refused:
        parse_chat(
            json.dumps({"model": "stub", "messages": [USER], "tools": [TOOL]}).encode(),
            replace(MODEL, takes_tools=False),
        )
    assert refused.value.param == "tools"


def test_a_message_without_content_needs_a_call() -> None:
    with pytest.raises(InvalidRequest) as refused:
        read({"messages": [{"role": "assistant", "content": None}]})
    assert refused.value.param == "messages[0].content"
    assert messages_of(read({"messages": [{"role": "assistant", "content": "x"}]}))[0].content == (TextPart("x"),)
