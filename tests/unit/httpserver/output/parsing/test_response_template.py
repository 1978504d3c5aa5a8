"""Formats that a checkpoint declares: read if the machine can follow them, otherwise left to the chat template."""

from __future__ import annotations

from typing import Any

import pytest

from mmserve.httpserver.output.parsing.formats import CALLS, THINKING, Format
from mmserve.httpserver.output.parsing.response_template import declared_format
from tests.unit.httpserver.output.parsing.examples import meaning
from tests.unit.httpserver.output.parsing.test_machine import read

THINK = {"open": "<think>", "close": "</think>", "content": "text"}
WHOLE = {"type": "function", "function": "{content}"}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
JSON_CALLS = {"open": "<call>", "close": "</call>", "repeats": True, "content": "json", "transform": WHOLE}


def declared(**fields: Any) -> Format | None:
    return declared_format({"start_anchor": "<|assistant|>", "fields": fields})


def test_json_between_known_tags_is_hermes() -> None:
    calls = {"open": "<tool_call>", "close": "</tool_call>", "repeats": True, "content": "json", "transform": WHOLE}
    found = declared(thinking=THINK, tool_calls=calls, content={"close": "<|im_end|>", "content": "text"})
    assert found == Format(CALLS["hermes"], THINKING["think"])


def test_parameters_in_tags_are_those_of_qwen3_coder() -> None:
    calls = {
        "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>",
        "close": "</tool_call>",
        "content": "xml-inline",
        "content_args": {"tag_pattern": r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)\s*</parameter>"},
        "transform": NAMED,
    }
    assert declared(reasoning_content=THINK, tool_calls=calls) == Format(CALLS["qwen3-coder"], THINKING["think"])


def test_bare_keys_and_own_quotes_are_gemma() -> None:
    thinking = {"open": "<|channel>thought\n", "close": "<channel|>", "content": "text"}
    calls = {
        "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
        "close": "<tool_call|>",
        "content": "json",
        "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
        "transform": NAMED,
    }
    assert declared(thinking=thinking, tool_calls=calls) == Format(CALLS["gemma4"], THINKING["gemma4"])


def test_json_between_literals_of_its_own() -> None:
    format = declared(thinking={"open": "<hm>\n", "close": "\n</hm>", "content": "text"}, tool_calls=JSON_CALLS)
    assert format is not None
    text = 'x <call>{"name": "f", "arguments": {"a": "</call>"}}</call>'
    assert meaning(read(format, [f"<hm>\ny\n</hm>{text}"])) == [
        ("reasoning", "y"),
        ("text", "x"),
        ("call", "f", '{"a": "</call>"}'),
    ]


@pytest.mark.parametrize(
    "fields",
    [
        {"content": {"open": "<|channel|>final<|message|>", "close": "<|end|>"}},
        {"thinking": {"open_pattern": r"(?:^|<think>\s*)", "close": "</think>"}},
        {"thinking": {"open_pattern": r"a|<think>", "close": "</think>"}},
        {"thinking": {"open": "<think>"}},
        {"thinking": "<think>"},
        {"tool_calls": JSON_CALLS | {"transform": NAMED}},
        {"tool_calls": JSON_CALLS | {"content": "kv-lines"}},
        {"tool_calls": JSON_CALLS | {"content_args": {"unquoted_keys": True}}},
        {},
    ],
)
def test_what_the_machine_cannot_follow_is_left_to_the_chat_template(fields: dict[str, Any]) -> None:
    assert declared(**fields) is None


@pytest.mark.parametrize("template", [None, "x", {}, {"fields": []}])
def test_what_is_no_template(template: object) -> None:
    assert declared_format(template) is None
