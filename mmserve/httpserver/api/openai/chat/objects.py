"""The JSON objects of OpenAI's chat completions: chunks of a stream, and whole answers."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from mmserve.httpserver.api.openai.logprobs import ChoiceLogprobs
from mmserve.httpserver.api.openai.usage import WireUsage

StopReason = int | str | UnsetType
"""The client's stop token or stop string that ended a choice. vLLM's name for it."""
TokenIds = list[int] | UnsetType


class FunctionDelta(msgspec.Struct, omit_defaults=True):
    name: str | None = None
    arguments: str | None = None


class ToolCallDelta(msgspec.Struct, omit_defaults=True):
    """The first of a call has ``id``, ``type`` and the name; the others have arguments only: clients concatenate."""

    index: int
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None


class ChunkDelta(msgspec.Struct, omit_defaults=True):
    """``reasoning`` repeats ``reasoning_content``: some clients read one name, some the other."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[ToolCallDelta] | None = None


class ChunkChoice(msgspec.Struct):
    index: int
    delta: ChunkDelta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: StopReason = UNSET
    token_ids: TokenIds = UNSET


class Timing(msgspec.Struct):
    """Milliseconds from the request's arrival, and of each stage (docs/running.md). Of several choices the longest."""

    ttft_ms: float
    """Until the first piece of the answer was there."""
    total_ms: float
    stages_ms: dict[str, float]


class Chunk(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: str = "chat.completion.chunk"
    usage: WireUsage | UnsetType | None = UNSET
    prompt_token_ids: TokenIds = UNSET
    """In the first chunk."""
    timing: Timing | UnsetType = UNSET
    """In the last chunk, if it was asked for."""


class Function(msgspec.Struct):
    name: str
    arguments: str = ""


class CompleteCall(msgspec.Struct):
    id: str
    function: Function
    type: str = "function"


class AnswerMessage(msgspec.Struct):
    content: str | None = None
    role: str = "assistant"
    refusal: None = None
    annotations: list[object] = []
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[CompleteCall] | UnsetType = UNSET


class AnswerChoice(msgspec.Struct):
    index: int
    message: AnswerMessage
    finish_reason: str | None = None
    logprobs: ChoiceLogprobs | None = None
    stop_reason: StopReason = UNSET
    token_ids: TokenIds = UNSET


class Completion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: WireUsage
    object: str = "chat.completion"
    prompt_logprobs: list[msgspec.Raw] | UnsetType = UNSET
    """See prompt_logprobs."""
    prompt_token_ids: TokenIds = UNSET
