"""Anthropic bodies to calls: every block and role, and that every refusal names its field."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mmserve.httpserver.api.anthropic.messages import COUNT_TOKENS, MESSAGES
from mmserve.httpserver.api.protocol import parse_body
from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.conversation import Conversation, MediaPart, Message, TextPart, Tool, ToolCall, ToolChoice
from mmserve.httpserver.limits.media_budgets import RequestByteLimit
from mmserve.httpserver.media.local import read_data_url
from mmserve.httpserver.served_model import ServedModel
from mmserve.runtime.errors import InvalidRequest, MmserveError, ModelNotFound
from tests.fakes.http.http_services import make_deployment

MODEL = replace(
    ServedModel.of(make_deployment("/nowhere")),
    takes_tools=True,
    template_variables=frozenset({"enable_thinking", "reasoning_effort"}),
)
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD"}}
SCHEMA = {"type": "object", "properties": {"colour": {"type": "string"}}}
PAINT = {"name": "paint", "input_schema": SCHEMA}
USER = {"role": "user", "content": "hi"}


def read(*messages: dict[str, Any], **fields: Any) -> GenerateCall:
    body = {"model": "stub", "max_tokens": 9, "messages": list(messages or (USER,))} | fields
    return parse_body(MESSAGES, json.dumps(body).encode(), MODEL, 1.5).call


def conversation(*messages: dict[str, Any], **fields: Any) -> Conversation:
    (prompt,) = read(*messages, **fields).prompts
    assert isinstance(prompt, Conversation)
    return prompt


def said(role: str, *parts: str | MediaPart, **fields: Any) -> Message:
    return Message(role, tuple(TextPart(part) if isinstance(part, str) else part for part in parts), **fields)


def user(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value, "cache_control": {"type": "ephemeral"}}


def use(id: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "paint", "input": arguments, "caller": {"type": "direct"}}


def result(id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id} | fields


def test_a_plain_request() -> None:
    call = read(system="be kind", stop_sequences=["X"], temperature=0, top_k=3, stream=True, cache_salt="s")
    assert call.prompts == (Conversation((said("system", "be kind"), said("user", "hi"))),)
    assert (call.stop, call.stream, call.arrival_s, call.n, call.cache_salt) == (("X",), True, 1.5, 1, "s")
    assert (call.sampling.max_tokens, call.sampling.temperature, call.sampling.top_k) == (9, 0.0, 3)


def test_null_means_absent_and_bookkeeping_is_accepted() -> None:
    fields = "system stream stop_sequences temperature top_p top_k tools tool_choice thinking output_config mcp_servers"
    fields += " container cache_control context_management metadata service_tier inference_geo diagnostics speed seed"
    assert read(**dict.fromkeys(fields.split())).prompts == read().prompts
    bookkeeping = {
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "cache_control": {"type": "ephemeral"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "mcp_servers": [],
        "speed": "standard",
    }
    assert read(**bookkeeping).prompts == read().prompts


def test_the_system_prompt_keeps_its_blocks_but_not_the_billing_header() -> None:
    billing = text("x-anthropic-billing-header: cc_version=2; cch=1a2b3;")
    assert conversation(system=[billing, text("be "), text("kind")]).messages[0] == said("system", "be kind")
    assert conversation(system=[billing]).messages == (said("user", "hi"),)
    assert conversation(system="").messages == (said("user", "hi"),)


def test_system_messages_stay_where_they_are_and_old_roles_are_the_users() -> None:
    messages = conversation(
        USER, assistant(text("yes")), {"role": "ctx", "content": "c"}, {"role": "system", "content": "now"}
    )
    assert messages.messages == (said("user", "hi"), said("assistant", "yes"), said("user", "c"), said("system", "now"))


def test_neighbouring_texts_are_one_and_images_keep_their_place() -> None:
    call = read(user(text("a"), text("b"), PICTURE, text("c")), user(text("d"), PICTURE))
    (prompt,) = call.prompts
    assert isinstance(prompt, Conversation)
    assert prompt.messages == (said("user", "ab", MediaPart(0), "c\n\nd", MediaPart(1)),)
    assert [ref.param for ref in call.media] == [
        "messages[0].content[2].source.data",
        "messages[1].content[1].source.data",
    ]
    assert read_data_url(call.media[0], RequestByteLimit(9)) == b"ABC"


def test_images_by_url() -> None:
    (ref,) = read(user({"type": "image", "source": {"type": "url", "url": "http://x/y.png"}})).media
    assert (ref.url, ref.param) == ("http://x/y.png", "messages[0].content[0].source.url")


@pytest.mark.parametrize("position", ["turn", "result"])
def test_a_long_image_is_not_copied_out_of_the_body(position: str) -> None:
    long = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD" * 9000}}
    blocks = [long] if position == "turn" else [result("t1", content=[long])]
    call = read(USER, assistant(use("t1")), user(*blocks))
    assert call.media[0].data is not None
    assert read_data_url(call.media[0], RequestByteLimit(1 << 20)) == b"ABC" * 9000


def test_long_base64_in_another_place_is_text() -> None:
    long = "QUJD" * 9000
    call = read(USER, assistant(use("t1", data=long)), user(result("t1", content="ok")))
    (prompt,) = call.prompts
    assert isinstance(prompt, Conversation)
    assert json.loads(prompt.messages[1].tool_calls[0].arguments) == {"data": long}


def test_calls_and_results() -> None:
    messages = conversation(
        USER,
        assistant(
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "redacted_thinking", "data": "xx"},
            text("I paint."),
            use("t1", colour="red"),
            use("t2"),
        ),
        user(
            result("t1", content=[text("done"), PICTURE, text("nice")]),
            text("go on"),
            result("t2", content="no paint", is_error=True),
        ),
        tools=[PAINT],
    ).messages
    calls = (ToolCall("t1", "paint", '{"colour":"red"}'), ToolCall("t2", "paint", "{}"))
    assert messages == (
        said("user", "hi"),
        said("assistant", "I paint.", reasoning="hm", tool_calls=calls),
        said("tool", "done", MediaPart(0), "nice", tool_call_id="t1"),
        said("tool", "Error: no paint", tool_call_id="t2"),
        said("user", "go on"),
    )


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": []}, {"content": "", "is_error": False}])
def test_a_result_may_be_empty(content: dict[str, Any]) -> None:
    last = conversation(USER, assistant(use("t1")), user(result("t1", **content))).messages[-1]
    assert (last.role, last.tool_call_id, "".join(getattr(part, "text", "?") for part in last.content)) == (
        "tool",
        "t1",
        "",
    )


def test_documents_and_search_results_are_text() -> None:
    document = {
        "type": "document",
        "title": "T",
        "source": {"type": "text", "media_type": "text/plain", "data": "body"},
    }
    parts = {"type": "document", "source": {"type": "content", "content": [text("x"), PICTURE]}}
    found = {"type": "search_result", "title": "S", "source": "http://s", "content": [text("y")]}
    (message,) = conversation(user(document, parts, found)).messages
    assert message.content == (TextPart("T\nbody\nx"), MediaPart(0), TextPart("\nS\nhttp://s\ny\n"))


def test_blocks_of_other_servers_tools_are_replayed_as_text() -> None:
    search = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": [{"url": "u"}], "encrypted_content": "e"}
    message = conversation(USER, assistant(search, found, text("so")), USER).messages[1]
    (part,) = message.content
    assert isinstance(part, TextPart)
    assert '"query":"q"' in part.text
    assert '"url":"u"' in part.text
    assert "encrypted" not in part.text
    assert part.text.endswith("so")


def test_the_last_turn_of_the_assistant_is_continued_without_blanks_at_its_end() -> None:
    continued = conversation(USER, {"role": "assistant", "content": "The answer is \n"})
    assert continued.continue_final_message
    assert continued.messages[-1] == said("assistant", "The answer is")
    empty = conversation(USER, {"role": "assistant", "content": " "})
    assert not empty.continue_final_message
    assert empty.messages == (said("user", "hi"),)


def test_tools() -> None:
    described = {**PAINT, "type": "custom", "description": "d", "strict": True, "input_examples": [{"colour": "red"}]}
    asked = conversation(USER, tools=[described, {**PAINT, "name": "other", "defer_loading": True}])
    first, second = asked.tools
    assert first == Tool(
        "paint", 'd\nExample of its input: {"colour":"red"}', json.dumps(SCHEMA).replace(" ", ""), True
    )
    assert (second.name, second.strict, asked.tool_choice, asked.parallel_tool_calls) == (
        "other",
        False,
        ToolChoice(),
        True,
    )


def test_a_coding_agents_request_with_two_dozen_deep_schemas() -> None:
    option = {"anyOf": [{"type": "string", "maxLength": 80}, {"type": "null"}], "description": "o"}
    deep = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {
            "todos": {"type": "array", "minItems": 1, "items": {"type": "object", "properties": {"text": option}}},
            "env": {"type": "object", "patternProperties": {"^[A-Z_]+$": {"type": "string"}}},
        },
        "required": ["todos"],
        "additionalProperties": False,
    }
    tools = [{"name": f"mcp__files__tool_{n}", "description": "d" * 400, "input_schema": deep} for n in range(24)]
    tools[-1] |= {"cache_control": {"type": "ephemeral", "ttl": "1h"}, "eager_input_streaming": True}
    asked = conversation(
        user(text("<system-reminder>r</system-reminder>"), text("Fix it.")),
        assistant(
            {"type": "thinking", "thinking": "Both.", "signature": "EqQB"},
            use("toolu_1", todos=[{"text": "a"}]),
            use("toolu_2", todos=[]),
        ),
        user(
            result("toolu_1", content=[text("done"), PICTURE], **{"cache_control": {"type": "ephemeral"}}),
            result("toolu_2", content="<error>no</error>", is_error=True),
        ),
        {"role": "system", "content": [text("The user has opened b.py.")]},
        system=[text("x-anthropic-billing-header: cch=1;"), text("You are an agent.")],
        tools=tools,
        thinking={"type": "adaptive"},
        output_config={"effort": "high"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        metadata={"user_id": '{"session_id":"1"}'},
        stream=True,
        max_tokens=32000,
    )
    assert [message.role for message in asked.messages] == ["system", "user", "assistant", "tool", "tool", "system"]
    assert [call.id for call in asked.messages[2].tool_calls] == ["toolu_1", "toolu_2"]
    assert all(json.loads(tool.parameters) == deep for tool in asked.tools)
    assert json.loads(asked.template_kwargs) == {"enable_thinking": True, "reasoning_effort": "high"}


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        ({"type": "auto"}, ToolChoice(), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, ToolChoice(), False),
        ({"type": "any", "disable_parallel_tool_use": False}, ToolChoice("required"), True),
        ({"type": "tool", "name": "paint"}, ToolChoice("required", ("paint",)), True),
        ({"type": "none"}, ToolChoice("none"), True),
    ],
)
def test_tool_choice(choice: dict[str, Any], expected: ToolChoice, parallel: bool) -> None:
    asked = conversation(USER, tools=[PAINT], tool_choice=choice)
    assert (asked.tool_choice, asked.parallel_tool_calls) == (expected, parallel)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"enable_thinking": True}),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "low"}},
            {"enable_thinking": True, "reasoning_effort": "low"},
        ),
    ],
)
def test_thinking_is_a_variable_of_the_template(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert json.loads(conversation(USER, **fields).template_kwargs) == expected


def test_a_template_without_the_variable_is_not_given_it() -> None:
    body = {"model": "stub", "max_tokens": 9, "messages": [USER], "thinking": {"type": "adaptive"}}
    model = replace(MODEL, template_variables=frozenset())
    (prompt,) = parse_body(MESSAGES, json.dumps(body).encode(), model, 0.0).call.prompts
    assert prompt == Conversation((said("user", "hi"),))


def test_a_format_is_a_grammar() -> None:
    call = read(output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    assert "colour" in call.sampling.grammar
    assert call.grammar_param == "output_config.format.schema"
    assert read().sampling.grammar == ""


def test_a_body_to_count_needs_no_max_tokens() -> None:
    body = json.dumps({"model": "stub", "messages": [USER]}).encode()
    assert parse_body(COUNT_TOKENS, body, MODEL, 0.0).call.prompts == read().prompts
    with pytest.raises(InvalidRequest) as refused:
        parse_body(MESSAGES, body, MODEL, 0.0)
    assert refused.value.param == "max_tokens"


def test_another_model_is_not_found() -> None:
    with pytest.raises(ModelNotFound):
        read(model="claude-opus-4")


FULL: dict[str, Any] = {
    "model": "stub",
    "max_tokens": 9,
    "system": [text("be kind")],
    "messages": [
        user(text("a"), PICTURE, {"type": "image", "source": {"type": "url", "url": "http://x"}}),
        assistant({"type": "thinking", "thinking": "hm", "signature": "s"}, text("b"), use("t1", a=1)),
        user(
            result("t1", content=[text("c"), PICTURE], is_error=True),
            {"type": "document", "title": "T", "context": "C", "source": {"type": "text", "data": "d"}},
            {"type": "document", "source": {"type": "content", "content": [text("e")]}},
            {"type": "search_result", "title": "S", "source": "s", "content": [text("f")]},
        ),
        {"role": "system", "content": "now"},
    ],
    "stop_sequences": ["X"],
    "stream": False,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "seed": 1,
    "timeout": 3.0,
    "cache_salt": "s",
    "tools": [{**PAINT, "type": "custom", "description": "d", "strict": True, "input_examples": [{}]}],
    "tool_choice": {"type": "tool", "name": "paint", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
    "output_config": {"effort": "low"},
    "metadata": {"user_id": "u"},
    "service_tier": "auto",
    "context_management": {"edits": []},
    "cache_control": {"type": "ephemeral"},
}
FREE = {"metadata", "context_management", "cache_control", "properties", "input", "input_examples", "caller"}
"""Their content is not looked at."""
WRONG: tuple[Any, ...] = (7.5, "\x00wrong", [7], {"wrong": 7}, -7)


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    if path:
        yield path
    if path and path[-1] in FREE:
        return
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        yield from places(item, (*path, key))


def spelled(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def malformed() -> Iterator[tuple[str, dict[str, Any]]]:
    """Bodies with one value of a wrong type, by its field. A text may stand for a list of blocks."""
    for path in places(FULL):
        for wrong in WRONG:
            body = json.loads(json.dumps(FULL))  # a deep copy keeps blocks shared
            parent: Any = body
            for part in path[:-1]:
                parent = parent[part]
            kinds = {kind(parent[path[-1]]), *(["text"] if path[-1] in ("content", "system") else [])}
            if kind(wrong) not in kinds:
                parent[path[-1]] = wrong
                yield spelled(path), body


def kind(value: Any) -> str:
    return {int: "number", float: "number", str: "text"}.get(type(value), type(value).__name__)


def refusal(body: dict[str, Any]) -> MmserveError | None:
    try:
        parse_body(MESSAGES, json.dumps(body).encode(), MODEL, 0.0)
        return None
    except MmserveError as error:
        return error


def test_the_full_body_is_right() -> None:
    assert len(parse_body(MESSAGES, json.dumps(FULL).encode(), MODEL, 0.0).call.media) == 3


def test_a_value_of_a_wrong_type_is_refused_naming_its_field() -> None:
    bodies = [*malformed()]
    assert len(bodies) >= 200
    for field, body in bodies:
        error = refusal(body)
        assert error is not None, (field, body)
        assert 400 <= error.status < 500
        assert error.param, (field, error.message)
        assert error.param.startswith(field) or field.startswith(error.param), (field, error.param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"model": None}, "model"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"temperature": 2.1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"response_format": {}}, "response_format"),
        ({"fallbacks": []}, "fallbacks"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"url": "u"}]}, "mcp_servers"),
        ({"thinking": {"type": "often"}}, "thinking.type"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "adaptive", "display": "loud"}}, "thinking.display"),
        ({"thinking": {"type": "adaptive", "zzz": 1}}, "thinking.zzz"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {}, "name": 1}}}, "output_config.format.name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "some"}}, "tool_choice.type"),
        ({"tools": [PAINT], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
        ({"tools": [PAINT], "tool_choice": {"type": "any", "name": "paint"}}, "tool_choice.name"),
        ({"tools": [PAINT, PAINT]}, "tools[1].name"),
        ({"tools": [{"name": "a b", "input_schema": SCHEMA}]}, "tools[0].name"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "a", "input_schema": {"type": "string"}}]}, "tools[0].input_schema"),
        ({"tools": [{**PAINT, "zzz": 1}]}, "tools[0].zzz"),
        ({"tools": [{**PAINT, "allowed_callers": ["code_execution_20250825"]}]}, "tools[0].allowed_callers"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"system": [PICTURE]}, "system[0].type"),
        ({"system": [{"type": "text"}]}, "system[0].text"),
    ],
)
def test_fields_are_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(**fields) if "messages" not in fields else parse_body(
            MESSAGES, json.dumps({"model": "stub", "max_tokens": 1} | fields).encode(), MODEL, 0.0
        )
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ({"role": "tool", "content": "x"}, ".role"),
        ({"role": "user"}, ".content"),
        ({"role": "user", "content": []}, ".content"),
        ({"role": "user", "content": "x", "zzz": 1}, ".zzz"),
        (user({"type": "text"}), ".content[0].text"),
        (user({"type": "text", "text": "x", "zzz": 1}), ".content[0].zzz"),
        (user({"type": "audio"}), ".content[0].type"),
        (user(use("t9")), ".content[0].type"),
        (user({"type": "container_upload", "file_id": "f"}), ".content[0].type"),
        (user(result("nobody")), ".content[0].tool_use_id"),
        (assistant(use("t1"), result("t1")), ".content[1].type"),
        (assistant(use("t1")), ".content"),
        (assistant({"type": "image"}), ".content[0].type"),
        (user({"type": "image", "source": {"type": "file", "file_id": "f"}}), ".content[0].source.type"),
        (user({**PICTURE, "transformations": {}}), ".content[0].transformations"),
        (user({"type": "image", "source": {"type": "base64", "media_type": "image/png"}}), ".content[0].source.data"),
        (
            user({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}),
            ".content[0].source.data",
        ),
        (
            user({"type": "image", "source": {"type": "base64", "media_type": "application/pdf", "data": "QUJD"}}),
            ".content[0].source.media_type",
        ),
        (
            user(
                {
                    "type": "image",
                    "source": {
                        "type": "base64",
                        "media_type": "image/png",
                        "data": "data:image/png;base64," + "QUJD" * 9000,
                    },
                }
            ),
            ".content[0].source.data",
        ),
        (user({"type": "image", "source": {"type": "url", "url": "http://x/" + "y" * 9000}}), ".content[0].source.url"),
        (
            user(
                {
                    "type": "document",
                    "source": {"type": "base64", "media_type": "application/pdf", "data": "QUJD" * 9000},
                }
            ),
            ".content[0].source.type",
        ),
        (
            user({"type": "document", "citations": {"enabled": True}, "source": {"type": "text", "data": "d"}}),
            ".content[0].citations",
        ),
    ],
)
def test_blocks_are_refused_by_their_place(message: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(USER, message)
    assert refused.value.param == f"messages[1]{where}"
    assert len(refused.value.message) < 250


def test_a_text_model_takes_no_images_and_a_template_without_tools_no_tools() -> None:
    for model, body, param in (
        (replace(MODEL, max_images=None), {"messages": [user(PICTURE)]}, "messages[0].content[0].type"),
        (replace(MODEL, max_images=1), {"messages": [user(PICTURE, PICTURE)]}, "messages[0].content[1].type"),
        (replace(MODEL, takes_tools=False), {"messages": [USER], "tools": [PAINT]}, "tools"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            parse_body(MESSAGES, json.dumps({"model": "stub", "max_tokens": 1, **body}).encode(), model, 0.0)
        assert refused.value.param == param


def test_more_blocks_than_the_context_has_tokens_are_refused() -> None:
    many = [text("x")] * 300
    with pytest.raises(InvalidRequest) as refused:
        read(user(*many), assistant(use("t1")), user(result("t1", content=many)))
    assert refused.value.param == "messages"
