"""Formats: found by the chat template, chosen by name, and where a prompt leaves the model thinking."""

from __future__ import annotations

import pytest

from mmserve.httpserver.output.parsing.formats import CALLS, THINKING, Format, choose, starts_in_reasoning

THINK = THINKING["think"]


@pytest.mark.parametrize(
    ("template", "tokens", "calls", "thinking"),
    [
        ('<tool_call>\\n{"name": "\' + tool_call.name', (), "hermes", None),
        ("<tool_call>{{ '<function=' ~ name }} <think>", (), "qwen3-coder", "think"),
        ('{{ \'{"name": "\' + name + \'", "parameters": \' }} <|python_tag|>', (), "llama3-json", None),
        ('"parameters": <|python_tag|>', ("<|python_start|>",), "pythonic", None),
        ("<tool_call>{{ name }}<arg_key>", (), None, None),
        ("[TOOL_CALLS] [THINK]", (), "mistral", "mistral"),
        ("<|tool_call_start|>", (), "lfm2", None),
        ("<function_calls>", (), "olmo3", None),
        ("<|tool_call>call: <|channel>thought", (), "gemma4", "gemma4"),
        ("```tool_code", (), "gemma", None),
        ("<｜tool▁calls▁begin｜> ```json </think>", (), "deepseek", "think"),
        ("<｜tool▁calls▁begin｜> </think>", (), "deepseek-v3.1", "think"),
        ("{{ messages }}", (), None, None),
        ("{{ messages }}", ("<think>", "</think>"), None, "think"),
    ],
)
def test_formats_are_found_by_what_the_template_writes(
    template: str, tokens: tuple[str, ...], calls: str | None, thinking: str | None
) -> None:
    expected = Format(CALLS[calls] if calls else None, THINKING[thinking] if thinking else None)
    assert choose("auto", "auto", template, frozenset(tokens)) == expected


def test_a_name_counts_more_than_the_template() -> None:
    assert choose("mistral", "none", "<tool_call> <think>") == Format(CALLS["mistral"], None)
    assert choose("none", "seed", "<tool_call> <think>") == Format(None, THINKING["seed"])
    assert choose("qwen3", "none", "").calls == CALLS["hermes"]


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'herms' is none of auto, none, hermes"):
        choose("herms", "auto", "")


def test_markers_are_the_special_tokens_in_the_literals() -> None:
    special = frozenset({"<tool_call>", "<|channel>", "</s>", "<|tool_call>", "<tool_call|>"})
    assert choose("hermes", "think", "").markers(special) == ("<tool_call>",)
    assert choose("gemma4", "gemma4", "").markers(special) == ("<tool_call|>", "<|channel>", "<|tool_call>")


def test_no_literal_is_the_beginning_of_another_that_may_come_at_the_same_place() -> None:
    for name, calls in CALLS.items():
        openers = [*calls.open, *(thinking.open for thinking in THINKING.values())]
        for one in openers:
            assert not any(other.startswith(one) for other in openers if other != one), name


@pytest.mark.parametrize(
    ("prompt", "continued", "expected"),
    [
        ("<|user|>Hi<|assistant|><think>\n", "", True),
        ("<|user|>Hi<|assistant|>", "", False),
        ("<|user|>Hi<|assistant|><think>\n\n</think>\n\n", "", False),
        ("<|user|>What is <think>?<|assistant|>", "", False),
        ("<|assistant|><think>\nhm</think>Hi<|user|>Why?<|assistant|><think>\n", "", True),
        ("<|user|>Hi<|assistant|><think>\nI must", "<think>\nI must", True),
        ("<|user|>Hi<|assistant|><think>\nI must", "I must", True),
        ("<|user|>Hi<|assistant|><think>\nhm</think>\nWell", "<think>\nhm</think>\nWell", False),
        ("<|user|>Hi<|assistant|>Well", "Well", False),
    ],
)
def test_whether_a_prompt_ends_in_a_thought(prompt: str, continued: str, expected: bool) -> None:
    assert starts_in_reasoning(THINK, prompt, continued) == expected
    assert not starts_in_reasoning(None, prompt, continued)
