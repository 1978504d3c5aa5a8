"""The fields of an OpenAI chat completion request and their ranges. null means absent; unknown fields are ignored."""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from mmserve.messages.logprobs import MAX_TOP
from mmserve.runtime.errors import InvalidRequest

T = TypeVar("T")

MAX_CHOICES = 16
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_MODEL_NAME_CHARS = 256
MAX_SALT_CHARS = 256
MAX_BIASED_TOKENS = 4096
MAX_TOP_K = 2**31 - 1
"""More than any vocabulary. Messages to the ranks cannot carry integers of more than 64 bits."""

MAX_TIMEOUT_S = 86400

Penalty = Annotated[float, Meta(ge=-2, le=2)]
StopText = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    include_usage: bool | None = None


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """Fields with the same meaning in every protocol of OpenAI. ``sampling.sampling_params`` reads them."""

    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOP_K)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    logit_bias: dict[int, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: int | None = None
    ignore_eos: bool | None = None


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of ``POST /v1/chat/completions``. ConversationReader reads ``messages``; its errors name the part."""

    messages: Any = None
    model: Annotated[str, Meta(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_SALT_CHARS)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)] | None = None
    tool_choice: Any = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | None = None
    response_format: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    function_call: Any = None


_PATH = re.compile(r" - at `(?:key` in `)?\$\.?([^`]*)`$")


def decode(body: bytes | bytearray, type_: type[T]) -> T:
    """Decode JSON to a struct. Raises InvalidRequest, naming the field."""
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.ValidationError as error:
        message = str(error)
        found = _PATH.search(message)
        param = found[1].replace("[...]", "") if found and found[1] else None
        reason = _PATH.sub("", message)
        raise InvalidRequest(f"{param}: {reason}" if param else reason, param=param) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the request body is not valid JSON: {error}") from error


def refuse_unsupported(request: ChatRequest) -> None:
    """Raise InvalidRequest for fields that ask for a feature this server lacks, which ignoring would hide."""
    if request.tool_choice not in (None, "auto", "none"):
        raise InvalidRequest("calling a tool cannot be required: tools are not supported", param="tool_choice")
    if request.function_call not in (None, "auto", "none"):
        raise InvalidRequest("calling a function cannot be required", param="function_call")
    if request.audio is not None:
        raise InvalidRequest("audio output is not supported", param="audio")
    if any(modality != "text" for modality in request.modalities or ()):
        raise InvalidRequest("only text output is supported", param="modalities")
