"""Every field of the protocols beside chat completions changes what the body is parsed to, is refused, or is known to
change nothing. Fields that a protocol shares with chat completions are looked at with the cases of those."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from docs.chat_fields import MEANINGS
from docs.completion_fields import OWN_MEANINGS, page
from mmserve.grammar.sources import json_schema_grammar
from mmserve.httpserver.api.anthropic.fields import FormatField, OutputConfig, ThinkingField
from mmserve.httpserver.api.anthropic.fields import ToolChoiceField as AnthropicChoice
from mmserve.httpserver.api.openai.completions.request import CompletionRequest
from mmserve.httpserver.api.openai.fields import ExtensionFields, SamplingFields, StructuredOutputs
from mmserve.httpserver.api.openai.fields import StreamOptions as ChatStreamOptions
from mmserve.httpserver.api.openai.responses.request.fields import ReasoningFields, StreamOptions, TextFields
from mmserve.httpserver.api.protocol import parse_body
from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.conversation import Conversation, WrittenPrompt
from mmserve.messages.sampling import SamplingParams
from mmserve.runtime.errors import MmserveError
from tests.unit.httpserver.api.openai import test_chat_fields as chat
from tests.unit.httpserver.api.openai.test_chat_fields import MODEL, SCHEMA, USER, field_names
from tests.unit.httpserver.api.test_malformed_bodies import ALL, GOOD

OTHERS = sorted(set(ALL) - {"chat_completions"})


class Parsed:
    """What a body of a protocol is parsed to."""

    def __init__(self, protocol: str, body: dict[str, Any]) -> None:
        given = {"model": "stub"} | GOOD[protocol] | ({} if protocol in SEEDLESS else {"seed": 1}) | body
        given = {name: value for name, value in given.items() if value is not ABSENT}
        self.whole: Any = parse_body(ALL[protocol], json.dumps(given).encode(), MODEL, 0.0)

    @property
    def call(self) -> GenerateCall:
        return msgspec.structs.replace(self.whole.call, request_id="")

    @property
    def answer(self) -> Any:
        return self.whole.send_answer

    @property
    def response(self) -> dict[str, Any]:
        """Of Responses: what the answer repeats of the request."""
        echoed: dict[str, Any] = msgspec.to_builtins(self.answer.response)
        return {name: value for name, value in echoed.items() if name not in ("id", "created_at")}

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

    @property
    def written(self) -> WrittenPrompt:
        prompt = self.call.prompts[0]
        assert isinstance(prompt, WrittenPrompt)
        return prompt

    @property
    def texts(self) -> list[str]:
        return [part.text for message in self.prompt.messages for part in message.content]  # type: ignore[union-attr]

    @property
    def kwargs(self) -> dict[str, Any]:
        variables: dict[str, Any] = json.loads(self.prompt.template_kwargs)
        return variables

    def everything(self) -> Any:
        if not hasattr(self.whole, "call"):
            return self.whole
        answer = getattr(self.whole, "send_answer", self.whole)
        if hasattr(answer, "response"):
            return self.call, self.response
        return self.call, answer if hasattr(self.whole, "send_answer") else self.whole.return_token_strs


class _Absent:
    """Marks a field of GOOD that a body leaves out."""


ABSENT = _Absent()
SEEDLESS = {"compact", "embeddings", "tokenize", "detokenize"}
CHAT = {"messages": [USER]}
TOOL = {"type": "function", "name": "f", "parameters": SCHEMA}
NAMED = {"type": "function", "name": "f"}
CLAUDE_TOOL = {"name": "f", "input_schema": SCHEMA}
FORMAT = {"type": "json_schema", "name": "n", "schema": SCHEMA}
CLAUDE_FORMAT = {"type": "json_schema", "schema": SCHEMA}
NOT_HERE = {"input": ABSENT, "prompt": ABSENT}


@dataclass(frozen=True)
class Effect:
    """``look`` gives ``expected`` with the body, and something else with ``without`` in its place."""

    body: dict[str, Any]
    look: Callable[[Parsed], Any]
    expected: Any
    without: dict[str, Any] | None = None


@dataclass(frozen=True)
class Nothing:
    """The body is parsed to the same as ``without``."""

    body: dict[str, Any]
    without: dict[str, Any]


@dataclass(frozen=True)
class Refused:
    """``harmless`` changes nothing, and ``refused`` is an error that names the field."""

    harmless: Any
    refused: Any
    beside: dict[str, Any]


Case = Effect | Nothing | Refused


def shared(struct: type[msgspec.Struct]) -> dict[str, Case]:
    """The cases of chat completions for the fields of ``struct``."""
    names = field_names(struct)
    table: dict[str, Case] = {}
    for name, (body, look, expected) in chat.EFFECTS.items():
        if name.partition(".")[0] in names:
            table[name] = Effect(body, look, expected)
    for name, (harmless, refused) in chat.REFUSED.items():
        if name in names:
            table[name] = Refused(harmless, refused, {})
    return table | nothing(*(name for name in chat.WITHOUT_EFFECT if name.partition(".")[0] in names))


VALUES = chat.WITHOUT_EFFECT | {
    "truncation": "auto",
    "cache_control": {"type": "ephemeral"},
    "inference_geo": "eu",
    "diagnostics": {"a": 1},
    "speed": "fast",
}
"""Of fields that change nothing."""


def nothing(*names: str) -> dict[str, Case]:
    return {name: Nothing(nested_body(name, VALUES[name]), {}) for name in names}


def nested_body(path: str, value: Any, beside: dict[str, Any] | None = None) -> dict[str, Any]:
    """``value`` at ``a.b.c``, with the fields ``beside`` it."""
    *outer, last = path.split(".")
    body: dict[str, Any] = (beside or {}) | {last: value}
    for name in reversed(outer):
        body = {name: body}
    return body


MODEL_NAME = Refused("stub", "gpt-4", {})
STREAM = Effect({"stream": True}, lambda p: p.call.stream, True)
TIMEOUT = Effect({"timeout": 2}, lambda p: p.call.timeout_s, 2)
SETTINGS = Effect(
    {"mm_processor_kwargs": chat.SQUASHED}, lambda p: p.call.image_options, chat.EFFECTS["mm_processor_kwargs"][2]
)
SALT = Effect({"cache_salt": "a"}, lambda p: p.call.cache_salt, "a")
COMPLETIONS: dict[str, Case] = shared(ExtensionFields) | {
    "model": MODEL_NAME,
    "stream": STREAM,
    "timeout": TIMEOUT,
    "request_id": Effect({"request_id": "mine"}, lambda p: p.call.client_request_id, "mine"),
    "prompt": Effect({"prompt": ["a", "b"]}, lambda p: [prompt.content for prompt in p.call.prompts], ["a", "b"]),
    "suffix": Refused("", "the end", {}),
    "max_tokens": Effect({"max_tokens": 7}, lambda p: p.sampling.max_tokens, 7),
    "n": Effect({"n": 3}, lambda p: p.call.n, 3),
    "best_of": Refused(1, 2, {}),
    "echo": Effect({"echo": True}, lambda p: p.call.echo, True),
    "logprobs": Effect({"logprobs": 3}, lambda p: p.sampling.logprobs, 3),
    "stop": Effect({"stop": "a"}, lambda p: p.call.stop, ("a",)),
    "add_special_tokens": Effect({"add_special_tokens": False}, lambda p: p.written.add_special_tokens, False),
    "stream_options.include_usage": Effect(
        {"stream_options": {"include_usage": True}}, lambda p: p.answer.include_usage, True
    ),
    "stream_options.continuous_usage_stats": Effect(
        {"stream_options": {"continuous_usage_stats": True}}, lambda p: p.answer.usage_in_every_chunk, True
    ),
    **nothing("stream_options.include_obfuscation"),
}
RESPONSES: dict[str, Case] = (
    shared(SamplingFields)
    | {
        "model": MODEL_NAME,
        "stream": STREAM,
        "timeout": TIMEOUT,
        "cache_salt": SALT,
        "mm_processor_kwargs": SETTINGS,
        "input": Effect({"input": "x"}, lambda p: p.texts, ["x"]),
        "instructions": Effect({"instructions": "be kind"}, lambda p: p.texts, ["be kind", "hi"]),
        "max_output_tokens": Effect({"max_output_tokens": 7}, lambda p: p.sampling.max_tokens, 7),
        "max_tool_calls": Effect({"max_tool_calls": 3}, lambda p: p.response["max_tool_calls"], 3),
        "tools": Effect({"tools": [TOOL]}, lambda p: [tool.name for tool in p.prompt.tools], ["f"]),
        "tool_choice": Effect(
            {"tools": [TOOL], "tool_choice": NAMED}, lambda p: p.prompt.tool_choice.names, ("f",), {"tools": [TOOL]}
        ),
        "parallel_tool_calls": Effect({"parallel_tool_calls": False}, lambda p: p.prompt.parallel_tool_calls, False),
        "text.format": Effect({"text": {"format": FORMAT}}, lambda p: p.grammar, json_schema_grammar(SCHEMA, "")),
        "text.verbosity": Refused("medium", "high", {}),
        "reasoning.effort": Effect({"reasoning": {"effort": "none"}}, lambda p: p.kwargs, {"enable_thinking": False}),
        "reasoning.summary": Effect(
            {"reasoning": {"summary": "auto"}}, lambda p: p.response["reasoning"]["summary"], "auto"
        ),
        "include": Effect({"include": ["message.output_text.logprobs"]}, lambda p: p.sampling.logprobs, 0),
        "top_logprobs": Effect({"top_logprobs": 2}, lambda p: p.sampling.logprobs, 2),
        **nothing("truncation", "stream_options.include_obfuscation"),
        "store": Effect({"store": False}, lambda p: p.whole.request.store, False),
        "background": Effect({"background": True}, lambda p: p.response["background"], True),
        "previous_response_id": Effect(
            {"previous_response_id": "resp_1"}, lambda p: p.whole.request.previous_response_id, "resp_1"
        ),
    }
    | {
        # Accounts: the answer repeats these, which is all that they do.
        name: Effect({name: value}, lambda p, name=name: p.response[name], value)  # type: ignore[misc]
        for name, value in {
            "user": "ann",
            "safety_identifier": "hash",
            "prompt_cache_key": "key",
            "metadata": {"team": "a"},
        }.items()
    }
)
CLAUDE: dict[str, Case] = {
    "model": MODEL_NAME,
    "messages": Effect({"messages": [{"role": "user", "content": "x"}]}, lambda p: p.texts, ["x"]),
    "system": Effect({"system": "be kind"}, lambda p: p.texts, ["be kind", "hi"]),
    "max_tokens": Effect({"max_tokens": 7}, lambda p: p.sampling.max_tokens, 7),
    "stream": STREAM,
    "stop_sequences": Effect({"stop_sequences": ["a"]}, lambda p: p.call.stop, ("a",)),
    "temperature": Effect({"temperature": 0.5}, lambda p: p.sampling.temperature, 0.5),
    "top_p": Effect({"top_p": 0.5}, lambda p: p.sampling.top_p, 0.5),
    "top_k": Effect({"top_k": 5}, lambda p: p.sampling.top_k, 5),
    "seed": Effect({"seed": 9}, lambda p: p.sampling.seed, 9),
    "cache_salt": SALT,
    "mm_processor_kwargs": SETTINGS,
    "timeout": TIMEOUT,
    "tools": Effect({"tools": [CLAUDE_TOOL]}, lambda p: [tool.name for tool in p.prompt.tools], ["f"]),
    "tool_choice.type": Effect(
        {"tools": [CLAUDE_TOOL], "tool_choice": {"type": "any"}}, lambda p: p.prompt.tool_choice.mode, "required", {}
    ),
    "tool_choice.name": Effect(
        {"tools": [CLAUDE_TOOL], "tool_choice": {"type": "tool", "name": "f"}},
        lambda p: p.prompt.tool_choice.names,
        ("f",),
        {},
    ),
    "tool_choice.disable_parallel_tool_use": Effect(
        {"tools": [CLAUDE_TOOL], "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        lambda p: p.prompt.parallel_tool_calls,
        False,
    ),
    "thinking.type": Effect({"thinking": {"type": "disabled"}}, lambda p: p.kwargs, {"enable_thinking": False}, {}),
    "thinking.budget_tokens": Refused(2000, None, {"type": "enabled"}),
    "thinking.display": Effect(
        {"thinking": {"type": "adaptive", "display": "omitted"}}, lambda p: p.answer.shows_thinking, False
    ),
    "output_config.effort": Effect(
        {"output_config": {"effort": "low"}}, lambda p: p.kwargs, {"reasoning_effort": "low"}
    ),
    "output_config.format.type": Refused("json_schema", "grammar", {"schema": SCHEMA}),
    "output_config.format.schema": Effect(
        {"output_config": {"format": CLAUDE_FORMAT}},
        lambda p: p.grammar,
        json_schema_grammar(SCHEMA, ""),
        {},
    ),
    "output_config.format.name": Nothing(
        {"output_config": {"format": CLAUDE_FORMAT | {"name": "n"}}}, {"output_config": {"format": CLAUDE_FORMAT}}
    ),
    "mcp_servers": Refused([], [{"type": "url"}], {}),
    "container": Refused(None, "c", {}),
    "thread": Refused(None, {"type": "auto"}, {}),
    "context_management": Effect({"context_management": {}}, lambda p: p.answer.names_applied_edits, True),
    **nothing("cache_control", "metadata", "service_tier", "inference_geo", "diagnostics", "speed"),
}
EMBEDDINGS: dict[str, Case] = {
    "model": MODEL_NAME,
    "timeout": TIMEOUT,
    "input": Effect({"input": "x"}, lambda p: p.written.content, "x"),
    "messages": Effect(
        NOT_HERE | CHAT, lambda p: len(p.call.prompts[0].messages), 1, NOT_HERE | {"messages": [USER] * 2}
    ),  # type: ignore[union-attr]
    "encoding_format": Effect({"encoding_format": "base64"}, lambda p: p.answer.encoding_format, "base64"),
    "dimensions": Refused(8, 4, {}),
    "add_special_tokens": Effect({"add_special_tokens": False}, lambda p: p.written.add_special_tokens, False),
    "add_generation_prompt": Effect(
        NOT_HERE | CHAT | {"add_generation_prompt": True}, lambda p: p.prompt.add_generation_prompt, True
    ),
    "mm_processor_kwargs": Effect(NOT_HERE | CHAT | SETTINGS.body, SETTINGS.look, SETTINGS.expected, NOT_HERE | CHAT),
    "chat_template_kwargs": Effect(
        NOT_HERE | CHAT | {"chat_template_kwargs": {"enable_thinking": False}},
        lambda p: p.kwargs,
        {"enable_thinking": False},
    ),
    "cache_salt": Effect(NOT_HERE | CHAT | {"cache_salt": "a"}, lambda p: p.call.cache_salt, "a"),
    **nothing(*(name for name in chat.WITHOUT_EFFECT if "." not in name)),
}
TOKENIZE: dict[str, Case] = {
    "model": MODEL_NAME,
    "prompt": Effect({"prompt": "x"}, lambda p: p.written.content, "x"),
    "messages": EMBEDDINGS["messages"],
    "add_special_tokens": EMBEDDINGS["add_special_tokens"],
    "add_generation_prompt": Effect(
        NOT_HERE | CHAT | {"add_generation_prompt": False}, lambda p: p.prompt.add_generation_prompt, False
    ),
    "continue_final_message": Effect(
        NOT_HERE | {"messages": chat.ASSISTANT, "continue_final_message": True},
        lambda p: p.prompt.continue_final_message,
        True,
    ),
    "chat_template_kwargs": EMBEDDINGS["chat_template_kwargs"],
    "mm_processor_kwargs": EMBEDDINGS["mm_processor_kwargs"],
    "reasoning_effort": Effect(
        NOT_HERE | CHAT | {"reasoning_effort": "none"}, lambda p: p.kwargs, {"enable_thinking": False}
    ),
    "tools": Effect(NOT_HERE | CHAT | {"tools": [chat.TOOL]}, lambda p: [tool.name for tool in p.prompt.tools], ["f"]),
    "return_token_strs": Effect({"return_token_strs": True}, lambda p: p.whole.return_token_strs, True),
}
DETOKENIZE: dict[str, Case] = {
    "model": MODEL_NAME,
    "tokens": Effect({"tokens": [1, 2]}, lambda p: p.whole, [1, 2]),
}
COMPACT: dict[str, Case] = {
    "model": MODEL_NAME,
    "timeout": TIMEOUT,
    "input": Effect({"input": "x"}, lambda p: p.texts[:-1], ["x"]),
    "instructions": Effect({"instructions": "be kind"}, lambda p: p.texts[:-1], ["be kind", "hi"]),
    "previous_response_id": RESPONSES["previous_response_id"],
    **nothing(*(name for name in chat.WITHOUT_EFFECT if "." not in name)),
}
TABLES = {
    "completions": COMPLETIONS,
    "responses": RESPONSES,
    "input_tokens": RESPONSES,
    "compact": COMPACT,
    "messages": CLAUDE,
    "count_tokens": CLAUDE,
    "embeddings": EMBEDDINGS,
    "tokenize": TOKENIZE,
    "detokenize": DETOKENIZE,
}
NESTED: dict[str, dict[str, type[msgspec.Struct]]] = {
    "completions": {"stream_options": ChatStreamOptions, "structured_outputs": StructuredOutputs},
    "responses": {"stream_options": StreamOptions, "text": TextFields, "reasoning": ReasoningFields},
    "messages": {
        "tool_choice": AnthropicChoice,
        "thinking": ThinkingField,
        "output_config": OutputConfig,
        "output_config.format": FormatField,
    },
}
CASES = [(protocol, name, case) for protocol, table in TABLES.items() for name, case in table.items()]


def test_every_protocol_has_a_table() -> None:
    assert sorted(TABLES) == OTHERS


@pytest.mark.parametrize("protocol", TABLES)
def test_every_field_is_in_the_table(protocol: str) -> None:
    alike = {"input_tokens": "responses", "count_tokens": "messages"}.get(protocol, protocol)
    nested = NESTED.get(alike, {})
    names = field_names(ALL[protocol].body_type)
    for outer, struct in nested.items():
        names |= field_names(struct, f"{outer}.")
    assert set(TABLES[protocol]) == names - set(nested)


@pytest.mark.parametrize(("protocol", "name", "case"), CASES, ids=[f"{protocol}-{name}" for protocol, name, _ in CASES])
def test_a_field_does_what_its_table_says(protocol: str, name: str, case: Case) -> None:
    if isinstance(case, Effect):
        top, _, below = name.partition(".")
        left = {top: {key: value for key, value in case.body[top].items() if key != below}} if below else {}
        without = {key: value for key, value in case.body.items() if key != top} | left
        without = without if case.without is None else case.without
        if name == "top_logprobs" and protocol in ("completions", "chat_completions"):
            without = {"logprobs": True}
        assert case.look(Parsed(protocol, case.body)) == case.expected
        assert case.look(Parsed(protocol, without)) != case.expected
    elif isinstance(case, Refused):
        Parsed(protocol, nested_body(name, case.harmless, case.beside))
        with pytest.raises(MmserveError) as refused:
            Parsed(protocol, nested_body(name, case.refused, case.beside))
        assert (refused.value.param or "").startswith(name)
        assert 400 <= refused.value.status < 500
    else:
        assert Parsed(protocol, case.body).everything() == Parsed(protocol, case.without).everything()


def test_the_page_of_completions_is_up_to_date() -> None:
    assert Path("docs/completion_fields.md").read_text() == page(), "run make docs"
    assert field_names(CompletionRequest) <= set(MEANINGS) | set(OWN_MEANINGS)
    assert set(OWN_MEANINGS) <= field_names(CompletionRequest)
