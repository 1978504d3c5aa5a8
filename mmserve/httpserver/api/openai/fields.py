"""The fields of an OpenAI chat completion request and their ranges. null means absent."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from mmserve.httpserver.api.openai.chat.tools import MAX_TOOLS, FunctionFields, ToolList
from mmserve.messages.logprobs import MAX_TOP
from mmserve.messages.request import MAX_PRIORITY
from mmserve.messages.sampling import MAX_ALLOWED_TOKEN_IDS, MAX_BAD_WORDS, MAX_STOP_TOKEN_IDS
from mmserve.runtime.errors import InvalidRequest, quoted, shortened

T = TypeVar("T")

MAX_CHOICES = 16
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_MODEL_NAME_CHARS = 256
MAX_SALT_CHARS = 256
MAX_ID_CHARS = 512
MAX_BIASED_TOKENS = 4096
MAX_BAD_WORD_CHARS = 256
MAX_TOP_K = 2**31 - 1
"""More than any vocabulary. Messages to the ranks cannot carry integers of more than 64 bits."""

MAX_TIMEOUT_S = 86400
MIN_REPETITION_PENALTY = 0.01
"""Logits are divided by it: a much smaller one makes them infinite."""

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
StopText = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
BadWord = Annotated[str, Meta(min_length=1, max_length=MAX_BAD_WORD_CHARS)]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None
    """Padding against observers of the connection. The server sends none, with or without this field."""


class ChatStreamOptions(StreamOptions, frozen=True, kw_only=True):
    include_timing: bool | None = None
    """An event at the end says where the request's time went. Of mmserve."""


class Bookkeeping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields for the account of a hosted service. They change no answer, so they are accepted and not used."""

    user: Annotated[str, Meta(max_length=MAX_ID_CHARS)] | None = None
    safety_identifier: Annotated[str, Meta(max_length=MAX_ID_CHARS)] | None = None
    metadata: dict[str, str] | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    prompt_cache_key: Annotated[str, Meta(max_length=MAX_ID_CHARS)] | None = None
    prompt_cache_retention: Annotated[str, Meta(max_length=MAX_ID_CHARS)] | None = None
    prompt_cache_options: dict[str, Any] | None = None


class SamplingFields(Bookkeeping, frozen=True, kw_only=True):
    """Fields with the same meaning in every protocol of OpenAI. ``sampling.sampling_params`` reads them."""

    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOP_K)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=MIN_REPETITION_PENALTY, le=10)] | None = None
    logit_bias: dict[int, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[int], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    allowed_token_ids: Annotated[list[int], Meta(min_length=1, max_length=MAX_ALLOWED_TOKEN_IDS)] | None = None


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vLLM's ``structured_outputs``: one form of answer. ``json``: a schema, also as JSON text."""

    json: dict[str, Any] | bool | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None
    whitespace_pattern: str | None = None


class GrammarFields(SamplingFields, frozen=True, kw_only=True):
    """All fields that ask for a form of answer. ``structured_outputs.requested_grammar`` reads them."""

    response_format: Any = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | bool | str | None = None
    """The fields named guided_ are the older names of those of ``structured_outputs``."""
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    guided_decoding_backend: str | None = None


class ExtensionFields(GrammarFields, frozen=True, kw_only=True):
    """vLLM's extensions that chat and legacy completions share. ``extensions.extended`` reads them."""

    bad_words: Annotated[list[BadWord], Meta(max_length=MAX_BAD_WORDS // 2)] | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_SALT_CHARS)] | None = None
    request_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | None = None


class ChatRequest(ExtensionFields, frozen=True, kw_only=True):
    """Body of ``POST /v1/chat/completions``. ConversationReader reads ``messages``; its errors name the part."""

    messages: Any = None
    model: Annotated[str, Meta(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    stream: bool | None = None
    stream_options: ChatStreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None = None
    timeout: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | None = None
    tools: ToolList | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[FunctionFields], Meta(max_length=MAX_TOOLS)] | None = None
    """The older name of ``tools``, and ``function_call`` that of ``tool_choice``."""
    function_call: Any = None
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    store: bool | None = None
    modalities: list[str] | None = None
    audio: Any = None
    verbosity: Literal["low", "medium", "high"] | None = None
    prediction: Any = None
    mm_processor_kwargs: dict[str, Any] | None = None


_PATH = re.compile(r" - at `(?:key` in `)?\$\.?([^`]*)`$")
_UNKNOWN = re.compile(r"unknown field `(.*)`$", re.DOTALL)


def decode(body: bytes | bytearray, type_: type[T]) -> T:
    """Decode JSON to a struct. Raises InvalidRequest, naming the field."""
    try:
        return msgspec.json.decode(body, type=type_)
    except msgspec.ValidationError as error:
        message = str(error)
        found = _PATH.search(message)
        param = found[1].replace("[...]", "") if found and found[1] else None
        reason = _PATH.sub("", message)
        if unknown := _UNKNOWN.search(reason):
            name = shortened(unknown[1], 40)
            param = f"{param}.{name}" if param else name
            reason = f"there is no field {quoted(unknown[1])} here"
        raise InvalidRequest(f"{param}: {reason}" if param else reason, param=param) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the request body is not valid JSON: {error}") from error


def refuse_unsupported(request: ChatRequest) -> None:
    """Raise InvalidRequest for fields that ask for a feature this server lacks, which ignoring would hide."""
    if request.audio is not None:
        raise InvalidRequest("audio output is not supported", param="audio")
    if any(modality != "text" for modality in request.modalities or ()):
        raise InvalidRequest("only text output is supported", param="modalities")
    if request.store:
        raise InvalidRequest("chat completions are not stored; /v1/responses stores answers", param="store")
    if request.verbosity not in (None, "medium"):
        raise InvalidRequest("the model has no switch for verbosity", param="verbosity")
    if request.prediction is not None:
        raise InvalidRequest("predicted output is not supported", param="prediction")
