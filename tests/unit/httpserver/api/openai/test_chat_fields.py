"""Every field of a chat completion changes the call or the answer, is refused, or is known to change nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from docs.chat_fields import MEANINGS, page
from mmserve.grammar.sources import (
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from mmserve.grammar.structural_tag import structural_tag_grammar
from mmserve.httpserver.api.openai.chat.answer import ChatAnswer
from mmserve.httpserver.api.openai.chat.request import CHAT
from mmserve.httpserver.api.openai.fields import Bookkeeping, ChatRequest, ChatStreamOptions, StructuredOutputs
from mmserve.httpserver.api.protocol import parse_body
from mmserve.httpserver.call import GenerateCall, MediaRef
from mmserve.httpserver.conversation import Conversation, TextPart
from mmserve.httpserver.served_model import ServedModel
from mmserve.messages.sampling import SamplingParams
from mmserve.runtime.errors import InvalidRequest, ModelNotFound
from tests.fakes.http.http_services import EOS, make_deployment

USER = {"role": "user", "content": "hi"}
MODEL = replace(
    ServedModel.of(make_deployment("/nowhere")),
    takes_tools=True,
    template_variables=frozenset({"enable_thinking", "reasoning_effort"}),
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f>"]}


class Parsed:
    """What a body is parsed to."""

    def __init__(self, body: dict[str, Any]) -> None:
        parsed = parse_body(
            CHAT, json.dumps({"model": "stub", "messages": [USER], "seed": 1} | body).encode(), MODEL, 0.0
        )
        self.call: GenerateCall = msgspec.structs.replace(parsed.call, request_id="")
        self.answer = cast(ChatAnswer, parsed.send_answer)

    @property
    def sampling(self) -> SamplingParams:
        return self.call.sampling

    @property
    def grammar(self) -> str:
        return self.sampling.grammar

    @property
    def prompt(self) -> Conversation:
        (prompt,) = self.call.prompts
        assert isinstance(prompt, Conversation)
        return prompt


Case = tuple[dict[str, Any], Callable[[Parsed], Any], Any]
"""A body, what is looked at, and what it must be. Without the body it must be something else."""
ASSISTANT = [USER, {"role": "assistant", "content": "so"}]
EFFECTS: dict[str, Case] = {
    "messages": ({"messages": [{"role": "user", "content": "x"}]}, lambda p: p.prompt.messages[0].content[0].text, "x"),
    "stream": ({"stream": True}, lambda p: p.call.stream, True),
    "n": ({"n": 3}, lambda p: p.call.n, 3),
    "max_tokens": ({"max_tokens": 7}, lambda p: p.sampling.max_tokens, 7),
    "max_completion_tokens": ({"max_completion_tokens": 7}, lambda p: p.sampling.max_tokens, 7),
    "min_tokens": ({"min_tokens": 7}, lambda p: p.sampling.min_tokens, 7),
    "temperature": ({"temperature": 0.5}, lambda p: p.sampling.temperature, 0.5),
    "top_p": ({"top_p": 0.5}, lambda p: p.sampling.top_p, 0.5),
    "top_k": ({"top_k": 5}, lambda p: p.sampling.top_k, 5),
    "min_p": ({"min_p": 0.5}, lambda p: p.sampling.min_p, 0.5),
    "presence_penalty": ({"presence_penalty": 1}, lambda p: p.sampling.presence_penalty, 1),
    "frequency_penalty": ({"frequency_penalty": 1}, lambda p: p.sampling.frequency_penalty, 1),
    "repetition_penalty": ({"repetition_penalty": 2}, lambda p: p.sampling.repetition_penalty, 2),
    "logit_bias": ({"logit_bias": {"5": -1}}, lambda p: p.sampling.logit_bias, {5: -1}),
    "seed": ({"seed": 9}, lambda p: p.sampling.seed, 9),
    "ignore_eos": ({"ignore_eos": True}, lambda p: p.sampling.eos_token_ids, ()),
    "stop": ({"stop": ["a", "b"]}, lambda p: p.call.stop, ("a", "b")),
    "stop_token_ids": ({"stop_token_ids": [3, 4, 3]}, lambda p: p.sampling.stop_token_ids, (3, 4)),
    "allowed_token_ids": ({"allowed_token_ids": [3, 4]}, lambda p: p.sampling.allowed_token_ids, (3, 4)),
    "bad_words": ({"bad_words": ["red", "red"]}, lambda p: p.call.bad_words, ("red",)),
    "priority": ({"priority": -3}, lambda p: p.call.priority, -3),
    "request_id": ({"request_id": "mine-1"}, lambda p: p.call.response_id, "chatcmpl-mine-1"),
    "cache_salt": ({"cache_salt": "a"}, lambda p: p.call.cache_salt, "a"),
    "timeout": ({"timeout": 2}, lambda p: p.call.timeout_s, 2),
    "logprobs": ({"logprobs": True}, lambda p: p.sampling.logprobs, 0),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 2}, lambda p: p.sampling.logprobs, 2),
    "skip_special_tokens": ({"skip_special_tokens": False}, lambda p: p.call.view.skip_special_tokens, False),
    "include_stop_str_in_output": ({"include_stop_str_in_output": True}, lambda p: p.call.view.include_stop, True),
    "return_token_ids": ({"return_token_ids": True}, lambda p: p.call.view.token_ids, True),
    "return_tokens_as_token_ids": ({"return_tokens_as_token_ids": True}, lambda p: p.answer.tokens_as_ids, True),
    "prompt_logprobs": ({"prompt_logprobs": 1}, lambda p: p.sampling.prompt_logprobs, 1),
    "include_reasoning": ({"include_reasoning": False}, lambda p: p.answer.include_reasoning, False),
    "tools": ({"tools": [TOOL]}, lambda p: [tool.name for tool in p.prompt.tools], ["f"]),
    "functions": ({"functions": [TOOL["function"]]}, lambda p: [tool.name for tool in p.prompt.tools], ["f"]),
    "tool_choice": (
        {"tools": [TOOL], "tool_choice": "required"},
        lambda p: p.prompt.tool_choice.mode,
        "required",
    ),
    "function_call": (
        {"functions": [TOOL["function"]], "function_call": {"name": "f"}},
        lambda p: (p.prompt.tool_choice.mode, p.prompt.tool_choice.names),
        ("required", ("f",)),
    ),
    "parallel_tool_calls": ({"parallel_tool_calls": False}, lambda p: p.prompt.parallel_tool_calls, False),
    "reasoning_effort": (
        {"reasoning_effort": "low"},
        lambda p: json.loads(p.prompt.template_kwargs),
        {"enable_thinking": True, "reasoning_effort": "low"},
    ),
    "chat_template_kwargs": (
        {"chat_template_kwargs": {"enable_thinking": False}},
        lambda p: json.loads(p.prompt.template_kwargs),
        {"enable_thinking": False},
    ),
    "add_generation_prompt": ({"add_generation_prompt": False}, lambda p: p.prompt.add_generation_prompt, False),
    "continue_final_message": (
        {"messages": ASSISTANT, "continue_final_message": True},
        lambda p: p.prompt.continue_final_message,
        True,
    ),
    "response_format": (
        {"response_format": {"type": "structural_tag"} | TAG},
        lambda p: p.grammar,
        structural_tag_grammar(TAG, ""),
    ),
    "guided_json": ({"guided_json": SCHEMA}, lambda p: p.grammar, json_schema_grammar(SCHEMA, "")),
    "guided_regex": ({"guided_regex": "a+"}, lambda p: p.grammar, regex_grammar("a+", "")),
    "guided_choice": ({"guided_choice": ["a", "b"]}, lambda p: p.grammar, choice_grammar(["a", "b"], "")),
    "guided_grammar": ({"guided_grammar": 'start: "a"'}, lambda p: p.grammar, lark_grammar('start: "a"', "")),
    "guided_whitespace_pattern": (
        {"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"},
        lambda p: p.grammar,
        json_schema_grammar(SCHEMA, "", " ?"),
    ),
    "stream_options.include_usage": (
        {"stream_options": {"include_usage": True}},
        lambda p: p.answer.include_usage,
        True,
    ),
    "stream_options.continuous_usage_stats": (
        {"stream_options": {"continuous_usage_stats": True}},
        lambda p: p.answer.usage_in_every_chunk,
        True,
    ),
    "stream_options.include_timing": (
        {"stream": True, "stream_options": {"include_timing": True}},
        lambda p: p.call.timed,
        True,
    ),
} | {
    f"structured_outputs.{name}": ({"structured_outputs": {name: value}}, lambda p: p.grammar, grammar)
    for name, value, grammar in (
        ("json", json.dumps(SCHEMA), json_schema_grammar(SCHEMA, "")),
        ("regex", "a+", regex_grammar("a+", "")),
        ("choice", ["a", "b"], choice_grammar(["a", "b"], "")),
        ("grammar", 'start: "a"', lark_grammar('start: "a"', "")),
        ("json_object", True, json_object_grammar()),
        ("structural_tag", json.dumps(TAG), structural_tag_grammar(TAG, "")),
    )
}
EFFECTS["structured_outputs.whitespace_pattern"] = (
    {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?"}},
    lambda p: p.grammar,
    json_schema_grammar(SCHEMA, "", " ?"),
)
SQUASHED = {"size": {"width": 8, "height": 8}, "do_center_crop": False}
EFFECTS["mm_processor_kwargs"] = (
    {"mm_processor_kwargs": SQUASHED},
    lambda p: p.call.image_options,
    '{"do_center_crop":false,"size":{"height":8,"width":8}}',
)
REFUSED: dict[str, tuple[Any, Any]] = {
    "store": (False, True),
    "modalities": (["text"], ["audio"]),
    "audio": (None, {"voice": "x"}),
    "verbosity": ("medium", "high"),
    "prediction": (None, {"type": "content", "content": "x"}),
    "guided_decoding_backend": ("guidance", "xgrammar"),
    "model": ("stub", "gpt-4"),
}
"""A value that changes nothing, and one that is refused because nothing would act upon it."""
WITHOUT_EFFECT: dict[str, Any] = {
    "user": "ann",
    "safety_identifier": "hash",
    "metadata": {"team": "a"},
    "service_tier": "auto",
    "prompt_cache_key": "key",
    "prompt_cache_retention": "24h",
    "prompt_cache_options": {"a": 1},
    "stream_options.include_obfuscation": True,
}


def field_names(type_: type[msgspec.Struct], prefix: str = "") -> set[str]:
    return {f"{prefix}{field.encode_name}" for field in msgspec.structs.fields(type_)}


def test_every_field_is_in_exactly_one_table() -> None:
    nested = {"stream_options": ChatStreamOptions, "structured_outputs": StructuredOutputs}
    names = field_names(ChatRequest) - set(nested)
    names = names.union(*(field_names(type_, f"{name}.") for name, type_ in nested.items()))
    assert sorted([*EFFECTS, *REFUSED, *WITHOUT_EFFECT]) == sorted(names)
    assert field_names(Bookkeeping) <= set(WITHOUT_EFFECT)


@pytest.mark.parametrize("name", EFFECTS)
def test_a_field_has_its_effect(name: str) -> None:
    body, look, expected = EFFECTS[name]
    assert look(Parsed(body)) == expected
    top, _, below = name.partition(".")
    left_out = {top: {key: value for key, value in body[top].items() if key != below}} if below else {}
    without = {key: value for key, value in body.items() if key != top} | left_out
    if name == "top_logprobs":
        without = {"logprobs": True}
    assert look(Parsed(without)) != expected


@pytest.mark.parametrize("name", REFUSED)
def test_what_nothing_would_act_upon_is_refused(name: str) -> None:
    harmless, refused = REFUSED[name]
    assert Parsed({name: harmless}).call == Parsed({}).call
    with pytest.raises((InvalidRequest, ModelNotFound)) as error:
        Parsed({name: refused})
    assert (error.value.param or "").partition(".")[0] == name


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_bookkeeping_changes_nothing(name: str) -> None:
    top, _, below = name.partition(".")
    value = WITHOUT_EFFECT[name]
    asked, plain = Parsed({top: {below: value} if below else value}), Parsed({})
    assert (asked.call, asked.answer) == (plain.call, plain.answer)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stop_token_ids": [1, 257]}, "stop_token_ids[1]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
        ({"stop_token_ids": [1] * 65}, "stop_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [EOS, EOS + 1]}, "allowed_token_ids[1]"),
        ({"bad_words": ["a", ""]}, "bad_words[1]"),
        ({"bad_words": ["a" * 257]}, "bad_words[0]"),
        ({"bad_words": ["a"] * 257}, "bad_words"),
        ({"priority": 101}, "priority"),
        ({"request_id": "a b"}, "request_id"),
        ({"request_id": ""}, "request_id"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "5"}, "guided_json"),
        ({"guided_json": 5}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_grammar": " "}, "guided_grammar"),
        ({"guided_regex": "a", "guided_choice": ["a"]}, "guided_choice"),
        ({"guided_regex": "a", "structured_outputs": {"regex": "a"}}, "guided_regex"),
        ({"guided_json": {}, "response_format": {"type": "json_object"}}, "guided_json"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"structured_outputs": {"regex": "a", "json_object": True}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": ""}}, "structured_outputs.whitespace_pattern"),
        ({"structured_outputs": {"structural_tag": "tag"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"structural_tag": {"format": {}}}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"disable_any_whitespace": True}}, "structured_outputs.disable_any_whitespace"),
        ({"tools": [TOOL], "tool_choice": "required", "guided_json": SCHEMA}, "tool_choice"),
        ({"mm_processor_kwargs": {"size": 0}}, "mm_processor_kwargs.size"),
        ({"mm_processor_kwargs": {"num_crops": 4}}, "mm_processor_kwargs.num_crops"),
        ({"mm_processor_kwargs": {"image_mean": [0, 0, 0]}}, "mm_processor_kwargs.image_mean"),
        ({"tools": [TOOL], "tool_choice": "auto", "function_call": "auto"}, "function_call"),
        ({"functions": [TOOL["function"]], "function_call": {"name": "g"}}, "function_call.function.name"),
    ],
)
def test_a_value_out_of_range_names_its_field(body: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Parsed(body)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "free", [{"structured_outputs": {"json_object": False}}, {"response_format": {"type": "text"}}]
)
def test_a_free_answer_may_be_asked_for_beside_a_grammar(free: dict[str, Any]) -> None:
    assert Parsed(free).grammar == ""
    assert Parsed({"guided_regex": "a+"} | free).grammar == regex_grammar("a+", "")


@pytest.mark.parametrize(
    ("part", "param"),
    [
        ({"type": "text", "text": "x", "uuid": "a"}, "uuid"),
        ({"type": "text", "text": "x", "image_url": "data:,"}, "image_url"),
        ({"type": "image_url", "image_url": {"url": "data:,x"}, "uuid": ""}, "uuid"),
        ({"type": "image_url", "image_url": {"url": "data:,x"}, "uuid": 5}, "uuid"),
        ({"type": "image_url", "image_url": None, "uuid": "a" * 257}, "uuid"),
        ({"type": "image_url", "image_url": None}, "image_url"),
        ({"type": "image_url", "image_url": {}}, "image_url.url"),
        ({"type": "image_url", "image_url": {"url": "data:,x", "format": "png"}}, "image_url.format"),
        ({"type": "image_url", "image_url": {"url": "data:,x", "detail": "most"}}, "image_url.detail"),
        ({"type": "image_url", "image_url": {"url": "data:,x", "detail": 5}}, "image_url.detail"),
    ],
)
def test_fields_of_a_part_that_would_be_ignored_are_refused(part: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Parsed({"messages": [{"role": "user", "content": [part]}]})
    assert refused.value.param == f"messages[0].content[0].{param}"


@pytest.mark.parametrize("empty", [{"image_url": None}, {}, {"image_url": {}}, {"image_url": {"url": None}}])
def test_a_part_with_a_uuid_may_leave_the_image_out(empty: dict[str, Any]) -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "data:,x"}, "uuid": "cat"},
        {"type": "image_url", "uuid": "dog"} | empty,
    ]
    call = Parsed({"messages": [{"role": "user", "content": parts}]}).call
    assert call.media == (
        MediaRef("data:,x", "messages[0].content[0].image_url.url", uuid="cat"),
        MediaRef("", "messages[0].content[1].uuid", uuid="dog"),
    )


def test_the_page_of_fields_is_up_to_date() -> None:
    assert Path("docs/chat_fields.md").read_text() == page(), "run make docs"
    assert set(MEANINGS) == field_names(ChatRequest)


def test_a_parts_hints_for_hosted_services_change_nothing() -> None:
    hints = {"cache_control": {"type": "ephemeral"}, "uuid": None}
    parsed = Parsed({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"} | hints]}]})
    assert parsed.prompt.messages[0].content == (TextPart("x"),)
