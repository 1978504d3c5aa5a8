"""The response object and its output items in OpenAI's JSON form."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from mmserve.httpserver.output.deltas import Usage


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str = ""
    annotations: tuple[()] = ()
    logprobs: list[msgspec.Raw] = msgspec.field(default_factory=list)


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str = ""


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    content: list[OutputText] = msgspec.field(default_factory=list)
    status: str = "in_progress"
    role: str = "assistant"


class CallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    """A client answers a call by its ``call_id``."""

    id: str
    call_id: str
    name: str
    arguments: str = ""
    status: str = "in_progress"


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    id: str
    summary: tuple[()] = ()
    content: list[ReasoningText] | UnsetType = UNSET
    """Left out rather than empty or null: clients refuse both."""
    encrypted_content: str | UnsetType = UNSET
    """The thoughts as ``sealed`` writes them, if the request includes that."""


Item = MessageItem | CallItem | ReasoningItem


class InputDetails(msgspec.Struct):
    cached_tokens: int
    """Found in the prefix cache."""
    image_tokens: int
    cache_write_tokens: int = 0


class OutputDetails(msgspec.Struct):
    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int

    @classmethod
    def of(cls, usage: Usage) -> ResponseUsage:
        return cls(
            usage.prompt_tokens,
            InputDetails(usage.cached_tokens, usage.image_tokens),
            usage.completion_tokens,
            OutputDetails(usage.reasoning_tokens),
            usage.prompt_tokens + usage.completion_tokens,
        )


class ResponseError(msgspec.Struct):
    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    reason: str


class ReasoningEcho(msgspec.Struct, frozen=True):
    effort: str | None = None
    summary: str | None = None


class TextEcho(msgspec.Struct):
    format: dict[str, Any]
    verbosity: str = "medium"


class ResponseObject(msgspec.Struct):
    """All keys that OpenAI's schema or that of Open Responses requires. Most repeat the request."""

    id: str
    created_at: int
    model: str
    object: str = "response"
    status: str = "in_progress"
    background: bool = False
    completed_at: int | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    output: list[Item] = []
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    reasoning: ReasoningEcho = ReasoningEcho()
    safety_identifier: str | None = None
    service_tier: str = "default"
    store: bool = False
    temperature: float = 1.0
    text: TextEcho = msgspec.field(default_factory=lambda: TextEcho({"type": "text"}))
    tool_choice: Any = "auto"
    tools: list[Any] = []
    top_logprobs: int = 0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    truncation: str = "disabled"
    user: str | None = None
    metadata: dict[str, str] = {}
    usage: ResponseUsage | None = None
    include: list[str] | UnsetType = UNSET
    """What the request includes that changes items. OpenAI's object has no such key."""


class InputTokens(msgspec.Struct):
    input_tokens: int
    object: str = "response.input_tokens"
