"""The fields of an Anthropic request and their ranges. null means absent; unknown fields are refused.

``messages``, ``system`` and ``tools`` are read by their own modules, whose errors name the part at fault.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from mmserve.grammar.sources import json_schema_grammar
from mmserve.httpserver.api.openai.fields import (
    MAX_MODEL_NAME_CHARS,
    MAX_SALT_CHARS,
    MAX_STOPS,
    MAX_TIMEOUT_S,
    MAX_TOP_K,
    StopText,
    decode,
)
from mmserve.runtime.errors import InvalidRequest, ThreadsUnsupported

_MAX_ID_CHARS = 4096
Name = Annotated[str, Meta(max_length=_MAX_ID_CHARS)]
Bookkeeping = Annotated[dict[str, Any], Meta(max_length=64)]
"""Accepted and not acted upon: it does not change an answer."""


class ToolChoiceField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: str
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``budget_tokens`` is advice that no model here can be told; ``max_tokens`` limits thoughts and answer."""

    type: str
    budget_tokens: Annotated[int, Meta(ge=1)] | None = None
    display: str | None = None


class FormatField(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: str
    schema: Any = None
    name: Name | None = None


class OutputConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    effort: str | None = None
    format: FormatField | None = None


class MessagesRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of ``POST /v1/messages``. The last four fields are extensions, as chat completions have them."""

    model: Annotated[str, Meta(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    messages: Any = None
    system: Any = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    stream: bool | None = None
    stop_sequences: Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=MAX_TOP_K)] | None = None
    tools: Any = None
    tool_choice: ToolChoiceField | None = None
    thinking: ThinkingField | None = None
    output_config: OutputConfig | None = None
    mcp_servers: Any = None
    container: Any = None
    cache_control: Bookkeeping | None = None
    context_management: Bookkeeping | None = None
    """No turn is ever removed; the answer says so by ``applied_edits``."""
    metadata: Bookkeeping | None = None
    service_tier: Name | None = None
    inference_geo: Name | None = None
    diagnostics: Bookkeeping | None = None
    thread: Bookkeeping | None = None
    """A conversation that the server keeps. Refused by an error after which SDKs send it whole."""
    speed: Name | None = None
    seed: int | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_SALT_CHARS)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)] | None = None


_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_THINKING = {"enabled": True, "adaptive": True, "between_tools": True, "disabled": False}


def decode_request(body: bytes | bytearray, required: tuple[str, ...]) -> MessagesRequest:
    """Decode a body, and refuse what this server cannot do. Raises InvalidRequest, naming the field."""
    request = decode(body, MessagesRequest)
    for field in required:
        if getattr(request, field) is None:
            raise InvalidRequest("field required", param=field)
    if request.mcp_servers not in (None, []):
        raise InvalidRequest("this server calls no tools; the client must", param="mcp_servers")
    if request.container is not None:
        raise InvalidRequest("this server runs no code", param="container")
    if request.thread is not None:
        raise ThreadsUnsupported("this server keeps no conversations: send all messages", param="thread")
    _check_output_config(request.output_config)
    return request


def _check_output_config(config: OutputConfig | None) -> None:
    if config is None:
        return
    if config.effort is not None and config.effort not in _EFFORTS:
        raise InvalidRequest(f"must be one of {', '.join(_EFFORTS)}", param="output_config.effort")


def output_grammar(config: OutputConfig | None) -> tuple[str, str]:
    """(grammar, the field that it comes from); empty texts if the answer is free. Raises InvalidRequest."""
    if config is None or config.format is None:
        return "", ""
    if config.format.type != "json_schema":
        raise InvalidRequest("must be json_schema", param="output_config.format.type")
    param = "output_config.format.schema"
    if not isinstance(config.format.schema, dict):
        raise InvalidRequest("must be an object", param=param)
    return json_schema_grammar(config.format.schema, param), param


def template_kwargs(request: MessagesRequest) -> dict[str, Any]:
    """Variables of the chat template that the request sets. A template that does not know one ignores it."""
    found: dict[str, Any] = {}
    if request.thinking is not None:
        found["enable_thinking"] = _is_thinking(request.thinking)
    if request.output_config is not None and request.output_config.effort is not None:
        found["reasoning_effort"] = request.output_config.effort
    return found


def _is_thinking(thinking: ThinkingField) -> bool:
    if thinking.type not in _THINKING:
        raise InvalidRequest(f"must be one of {', '.join(_THINKING)}", param="thinking.type")
    if thinking.type == "enabled" and thinking.budget_tokens is None:
        raise InvalidRequest("field required", param="thinking.budget_tokens")
    if thinking.display not in (None, "summarized", "omitted"):
        raise InvalidRequest("must be summarized or omitted", param="thinking.display")
    return _THINKING[thinking.type]
