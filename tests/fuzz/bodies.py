"""Mutated bodies of chat completions, of Responses and of Anthropic's messages, through parser and prompt builder.

A body becomes a prompt, or is refused with a 4xx. Nothing else is raised, and no body takes a second of CPU time.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.httpserver.api.anthropic.messages import MESSAGES
from mmserve.httpserver.api.openai.chat.request import CHAT
from mmserve.httpserver.api.openai.responses.parse import RESPONSES
from mmserve.httpserver.api.protocol import Protocol, parse_request
from mmserve.httpserver.call import GenerateCall, LeasedItem
from mmserve.httpserver.prompt.builder import PromptBuilder
from mmserve.httpserver.served_model import ServedModel
from mmserve.messages.cache import MediaRecord
from mmserve.messages.media import Handle
from mmserve.runtime.errors import MmserveError
from tests.fakes.http.http_services import EXPANSION
from tests.fakes.models.chat_models import deployment_of, write_chat_model

MAX_CPU_S = 1.0
_IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo=", "detail": "low"}}
_TEXT = {"type": "text", "text": "How many <image> are there? <|im_end|> \U0001f600"}
BODIES: tuple[dict[str, Any], ...] = (
    {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]},
    {
        "model": "tiny",
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "be kind"}]},
            {"role": "user", "content": [_IMAGE, _TEXT, _IMAGE], "name": "ann"},
            {"role": "assistant", "content": "yes"},
            {"role": "user", "content": [_TEXT]},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "n": 2,
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "min_p": 0.1,
        "seed": 7,
        "stop": ["a", "\n"],
        "logit_bias": {"5": -100, "6": 3.5},
        "logprobs": True,
        "top_logprobs": 3,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.1,
        "repetition_penalty": 1.1,
        "min_tokens": 1,
        "ignore_eos": True,
        "cache_salt": "salt",
        "timeout": 3,
        "user": "u",
        "metadata": {"a": "b"},
        "tools": None,
        "response_format": {"type": "text"},
    },
)
_PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
_SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}, "required": ["a"]}
MESSAGES_BODIES: tuple[dict[str, Any], ...] = (
    {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    {
        "model": "tiny",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [_PICTURE, _TEXT]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "tool_use", "id": "t1", "name": "paint", "input": {"a": "<image>"}},
                    {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": [_TEXT, _PICTURE], "is_error": True},
                    {"type": "document", "title": "T", "source": {"type": "text", "data": "d"}},
                ],
            },
            {"role": "system", "content": "now"},
            {"role": "assistant", "content": "So "},
        ],
        "stop_sequences": ["a"],
        "stream": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "tools": [{"name": "paint", "description": "d", "input_schema": _SCHEMA, "strict": True}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": _SCHEMA}},
        "metadata": {"user_id": "u"},
    },
)
RESPONSES_BODIES: tuple[dict[str, Any], ...] = (
    {"model": "tiny", "input": "hi"},
    {
        "model": "tiny",
        "instructions": "be kind",
        "input": [
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "<image>"}]},
            {"type": "function_call", "call_id": "c", "name": "paint", "arguments": '{"a": "b"}'},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "t"}]},
        ],
        "stream": True,
        "max_output_tokens": 9,
        "temperature": 0.5,
        "top_logprobs": 2,
        "include": ["reasoning.encrypted_content"],
        "tools": [{"type": "function", "name": "paint", "description": "d", "parameters": _SCHEMA, "strict": True}],
        "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "paint"}]},
        "parallel_tool_calls": False,
        "text": {"format": {"type": "json_schema", "name": "a", "schema": _SCHEMA, "strict": True}},
        "reasoning": {"effort": "none", "summary": "auto"},
        "metadata": {"a": "b"},
        "truncation": "auto",
    },
)
_PROTOCOLS = ((CHAT, BODIES), (MESSAGES, MESSAGES_BODIES), (RESPONSES, RESPONSES_BODIES))
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**64), 10**400, 0.5, -0.0, 1e308, 1e-320),
    *(
        "",
        " ",
        "\0",
        "\ud800",
        "x" * 5000,
        "<image>",
        "<|im_start|>system",
        "data:",
        "data:;base64,",
        "file:///etc/passwd",
    ),
    *([], {}, [[]], {"": None}, [None], {"role": "user"}, {"type": "image_url"}, {"type": "text", "text": None}),
    *("http://[::1", "http://a:99999/", "image_url", "system", "tool", "developer", [_IMAGE] * 40, [_TEXT] * 300),
)
_PIECES = (
    b"NaN",
    b"-Infinity",
    b"1e999",
    b'"',
    b"\\u",
    b"\\ud800",
    b"\xff",
    b"\xed\xa0\x80",
    b"[" * 3000,
    b'{"":' * 500,
)


def mutated(count: int, seed: int = 1) -> Iterator[tuple[Protocol, bytes]]:
    """``count`` bodies, of three protocols in turn: most with one to three changes of structure, some with changes of
    bytes, some with both."""
    rng = random.Random(seed)
    for number in range(count):
        protocol, bodies = _PROTOCOLS[number % len(_PROTOCOLS)]
        value: Any = copy.deepcopy(rng.choice(bodies))
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            value = _change(value, rng)
        data = bytearray(json.dumps(value, ensure_ascii=True).encode())
        if rng.random() < 0.4:
            _damage(data, rng)
        yield protocol, bytes(data)


def _change(value: Any, rng: random.Random) -> Any:
    """Replace, remove, repeat or wrap a value somewhere in the tree."""
    if isinstance(value, dict) and value and rng.random() < 0.8:
        key = rng.choice(list(value))
        match rng.randrange(8):
            case 0:
                del value[key]
            case 1:
                value[rng.choice(("zzz", "", "content", "n"))] = copy.deepcopy(value[key])
            case _:
                value[key] = _change(value[key], rng)
        return value
    if isinstance(value, list) and value and rng.random() < 0.7:
        at = rng.randrange(len(value))
        if rng.random() < 0.2:
            return copy.deepcopy(value * rng.choice((0, 2, 20)))
        value[at] = _change(value[at], rng)
        return value
    return copy.deepcopy(rng.choice((*_VALUES, [value], {"url": value})))


def _damage(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    match rng.randrange(5):
        case 0:
            del data[at:]
        case 1:
            data[at : at + 1] = rng.randbytes(1)
        case 2:
            data[at:at] = rng.choice(_PIECES)
        case 3:
            del data[at : at + rng.randrange(1, 9)]
        case 4:
            data[at:at] = data[at : at + rng.randrange(1, 60)]


class Parser:
    """The parser and the prompt builder of a small model that takes pictures, and tools, which its template drops."""

    def __init__(self, directory: Path) -> None:
        deployment = deployment_of(write_chat_model(directory))
        self._model = replace(ServedModel.of(deployment), takes_tools=True)
        self._prompts = PromptBuilder(deployment)

    def attempt(self, protocol: Protocol, data: bytes) -> str:
        """How the body ended. Raises what must not happen."""
        try:
            call = asyncio.run(parse_request(protocol, data, self._model, 0.0)).call
            for prompt in call.prompts:
                self._prompts.build(prompt, call.media, _leased(call))
            return "became a prompt"
        except MmserveError as error:
            if error.status >= 500:
                raise
            return f"refused with {error.status}"


def _leased(call: GenerateCall) -> list[LeasedItem]:
    return [
        LeasedItem(MediaRecord(n, FIRST_VIRTUAL_TOKEN + 1000 * n, "hit", None, Handle(1, 64 * n, 128)), EXPANSION)
        for n in range(len(call.media))
    ]


def check(count: int) -> Counter[str]:
    """Try ``count`` bodies. Returns the number of each outcome. Raises AssertionError."""
    outcomes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as directory:
        parser = Parser(Path(directory))
        for number, (protocol, data) in enumerate(mutated(count)):
            started_s = time.process_time()
            try:
                outcomes[parser.attempt(protocol, data)] += 1
            except Exception as error:
                raise AssertionError(f"body {number}: {type(error).__name__}: {error}: {data[:300]!r}") from error
            took_s = time.process_time() - started_s
            assert took_s < MAX_CPU_S, f"body {number} takes {took_s:.1f} s"
    return outcomes


def run(count: int) -> str:
    """A summary of ``check``."""
    return ", ".join(f"{number} {outcome}" for outcome, number in check(count).items())
