"""The fields of an OpenAI Responses request and their ranges. null means absent. A field that is not here is a 400."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from mmserve.httpserver.api.openai.fields import (
    MAX_ID_CHARS,
    MAX_MODEL_NAME_CHARS,
    MAX_SALT_CHARS,
    MAX_TIMEOUT_S,
    SamplingFields,
)
from mmserve.messages.logprobs import MAX_TOP
from mmserve.runtime.errors import InvalidRequest, quoted

LOGPROBS = "message.output_text.logprobs"
Included = Literal["message.output_text.logprobs", "reasoning.encrypted_content", "message.input_image.image_url"]
INCLUDED: tuple[str, ...] = get_args(Included)
"""The last asks for what ``input_items`` always has."""
MAX_METADATA = 16
_MAX_METADATA_CHARS = (64, 512)
"""Of a name and of its value."""


class ReasoningFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto"] | None = None
    """Thoughts are sent as they are. "auto" asks for the best summary that there is, which is none."""


class TextFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: Any = None
    verbosity: Literal["medium"] | None = None
    """No model here can be told to write more or less than it does."""


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    include_obfuscation: bool | None = None
    """Padding against observers of the connection. The server sends none, with or without this field."""


class ResponsesRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of ``POST /v1/responses``. ItemsReader reads ``input``; its errors name the item."""

    input: Any = None
    model: Annotated[str, Meta(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    """Limits the calls of tools that the server runs, and it runs none."""
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    text: TextFields | None = None
    reasoning: ReasoningFields | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    """Nothing is ever dropped from a prompt. "auto" allows the server to, and does not oblige it."""
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: Annotated[str, Meta(max_length=MAX_ID_CHARS)] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_SALT_CHARS)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)] | None = None


def check_request(request: ResponsesRequest) -> None:
    """Raise InvalidRequest for values that need more than one field, or more than a range, to be checked."""
    check_included(request.include or ())
    if request.background and request.store is False:
        raise InvalidRequest("a response in the background must be stored, and store is false", param="background")
    metadata = request.metadata or {}
    if len(metadata) > MAX_METADATA:
        raise InvalidRequest(f"metadata may have {MAX_METADATA} entries", param="metadata")
    max_name, max_value = _MAX_METADATA_CHARS
    if any(len(name) > max_name or len(value) > max_value for name, value in metadata.items()):
        raise InvalidRequest(f"a name may have {max_name} characters and a value {max_value}", param="metadata")


def check_included(values: Iterable[str]) -> None:
    """Raises InvalidRequest for a value of ``include`` that this server cannot include."""
    for value in values:
        if value not in INCLUDED:
            raise InvalidRequest(f"{quoted(value)} cannot be included, only {', '.join(INCLUDED)}", param="include")


def requested_logprobs(request: ResponsesRequest) -> int | None:
    """SamplingParams.logprobs: asked for by ``include``, or by the number of alternatives."""
    if request.top_logprobs or LOGPROBS in (request.include or ()):
        return request.top_logprobs or 0
    return None
