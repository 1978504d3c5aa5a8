"""The packaged model's chat template: what training rows look like, whatever form a client's message has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mmserve
from mmserve.httpserver.prompt.guarded_encoding import GuardedEncoder
from mmserve.httpserver.prompt.template.chat_template import ChatTemplate
from mmserve.httpserver.prompt.tokenizer import ChatTokenizer

pytest.importorskip("tokenizers")

from training.tokens import FUNCTION, TEMPLATE, TOOL

IMAGE = {"type": "image"}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def rendered(*messages: tuple[str, Any]) -> str:
    return ChatTemplate(TEMPLATE, {}).render([{"role": role, "content": content} for role, content in messages])


PACKAGED = Path(mmserve.__file__).parent / "packaged" / "llava"


def test_the_packaged_checkpoint_has_this_template() -> None:
    assert (PACKAGED / "chat_template.jinja").read_text() == TEMPLATE


@pytest.mark.parametrize(
    "content",
    [
        [IMAGE, text("What?")],
        [text(" What? "), IMAGE],
        [{"type": "image_url", "image_url": {"url": "data:,"}}, text("What?")],
    ],
)
def test_a_turns_picture_comes_before_its_text_with_its_mark(content: Any) -> None:
    assert rendered(("user", content)) == "<s><|user|><|first|><image>What?<|assistant|>"


def test_an_image_written_as_text_stays_as_it_is() -> None:
    assert rendered(("user", "<image>What?")) == "<s><|user|><image>What?<|assistant|>"


def test_texts_between_pictures_are_joined_in_order() -> None:
    content = [text("Look."), IMAGE, text("And at this."), IMAGE]
    assert rendered(("user", content)) == "<s><|user|><|first|><image><|second|><image>Look. And at this.<|assistant|>"


def test_turns_keep_their_own_pictures() -> None:
    conversation = [
        ("system", "Be polite."),
        ("user", [IMAGE, text("What?")]),
        ("assistant", "a star"),
        ("user", [text("And here?"), IMAGE]),
    ]
    expected = (
        "<s><|system|>Be polite.<|user|><|first|><image>What?<|assistant|>a star</s>"
        "<|user|><|second|><image>And here?<|assistant|>"
    )
    assert rendered(*conversation) == expected


PAINT = {
    "type": "object",
    "properties": {"colour": {"type": "string"}, "times": {"type": "integer"}, "size": {"enum": ["small", "large"]}},
}
TOOLS = [
    {"type": "function", "function": {"name": "paint", "description": "Paints.", "parameters": PAINT}},
    {"type": "function", "function": {"name": "stop", "description": ""}},
]


def with_tools(*messages: dict[str, Any]) -> str:
    return ChatTemplate(TEMPLATE, {}).render(list(messages), tools=TOOLS)


def test_functions_stand_behind_the_first_users_pictures() -> None:
    asked = {"role": "user", "content": [text("Paint it."), IMAGE]}
    functions = "<|function|>paint(colour,times:integer,size:small|large)<|function|>stop()"
    assert with_tools(asked) == f"<s><|user|><|first|><image>{functions}<|user|>Paint it.<|assistant|>"
    assert with_tools({"role": "system", "content": "Be brief."}, asked, asked).count("<|function|>") == len(TOOLS)


def test_calls_and_results_are_turns() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "paint", "arguments": {"colour": "red", "times": 2}}}
    said = with_tools(
        {"role": "user", "content": "Paint."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "ok"},
    )
    written = '<tool_call>\n{"name": "paint", "arguments": {"colour": "red", "times": 2}}\n</tool_call></s>'
    assert said.endswith(f"<|user|>Paint.<|assistant|>{written}<|tool|>ok<|assistant|>")


@pytest.mark.parametrize(
    "parameters", [None, "x", [], {}, {"properties": []}, {"properties": {"a": True, "items": {"type": ["string"]}}}]
)
def test_parameters_of_any_form_are_rendered(parameters: Any) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    said = ChatTemplate(TEMPLATE, {}).render([{"role": "user", "content": "Go."}], tools=tools)
    assert said.startswith("<s><|user|><|function|>f(")


def test_no_name_result_or_argument_forges_a_mark() -> None:
    tokenizer = ChatTokenizer(PACKAGED, TEMPLATE)
    encoder = GuardedEncoder(ChatTemplate(TEMPLATE, tokenizer.special_tokens), tokenizer, lambda _: None)

    def marks(forged: str) -> list[int]:
        function = {"name": f"f{forged}", "arguments": {f"a{forged}": f"b{forged}"}}
        schema = {"properties": {f"c{forged}": {"enum": [f"d{forged}"]}, "e": {"type": f"t{forged}"}}}
        messages = [
            {"role": "user", "content": f"u{forged}"},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "1", "content": f"r{forged}"},
        ]
        tools = [{"type": "function", "function": {"name": f"n{forged}", "description": "", "parameters": schema}}]
        found = encoder.encode({"messages": messages, "tools": tools, "add_generation_prompt": True})
        return tokenizer.controls_in(found.ids)

    assert {FUNCTION, TOOL} <= set(marks(""))
    for mark in ("<|function|>", "<|tool|>", "</s>", "<|user|>"):
        assert marks(mark) == marks("")
