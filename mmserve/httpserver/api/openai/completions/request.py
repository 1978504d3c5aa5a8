"""OpenAI completions: parses a body into a GenerateCall. ``completion_answer`` sends the answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from mmserve.httpserver.api.openai.completions.answer import Completion, CompletionAnswer
from mmserve.httpserver.api.openai.completions.written_prompts import WrittenInput, read_written_prompts
from mmserve.httpserver.api.openai.extensions import extended
from mmserve.httpserver.api.openai.fields import (
    MAX_CHOICES,
    MAX_MODEL_NAME_CHARS,
    MAX_STOPS,
    MAX_TIMEOUT_S,
    ExtensionFields,
    StopText,
    StreamOptions,
    decode,
)
from mmserve.httpserver.api.openai.sampling import sampling_params
from mmserve.httpserver.api.protocol import ParsedRequest, Protocol
from mmserve.httpserver.call import GenerateCall, new_request_id
from mmserve.httpserver.media.split_media import SplitUrl, UrlsLeft
from mmserve.httpserver.served_model import ServedModel
from mmserve.messages.logprobs import MAX_TOP
from mmserve.messages.sampling import SamplingParams
from mmserve.runtime.errors import InvalidRequest, quoted

DEFAULT_MAX_TOKENS = 16
MAX_CHOICES_IN_ALL = 256
"""Of all prompts together."""


class CompletionRequest(ExtensionFields, frozen=True, kw_only=True):
    """Body of ``POST /v1/completions``. ``prompt`` null is the empty text: the model's bos token, if it has one."""

    prompt: WrittenInput | None = None
    model: Annotated[str, Meta(max_length=MAX_MODEL_NAME_CHARS)] | None = None
    suffix: str | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP)] | None = None
    stop: StopText | Annotated[list[StopText], Meta(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    add_special_tokens: bool | None = None
    timeout: Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_S)] | None = None


def parse(
    body: bytes | bytearray, split_urls: Mapping[str, SplitUrl], model: ServedModel, arrival_s: float
) -> ParsedRequest:
    """See ``protocol.Parse``."""
    if split_urls:
        raise UrlsLeft(split_urls)
    request = decode(body, CompletionRequest)
    model.check_given_name(request.model)
    _refuse_unsupported(request)
    prompts = read_written_prompts(request.prompt, "prompt", add_special_tokens=request.add_special_tokens is not False)
    n = request.n or 1
    if n * len(prompts) > MAX_CHOICES_IN_ALL:
        raise InvalidRequest(
            f"{len(prompts)} prompts with {n} choices each are more than {MAX_CHOICES_IN_ALL} choices in all", param="n"
        )
    options = request.stream_options or StreamOptions()
    call = GenerateCall(
        request_id=new_request_id(),
        model=model.name,
        prompts=prompts,
        num_prompts=len(prompts),
        media=(),
        sampling=_sampling(request, model),
        arrival_s=arrival_s,
        n=n,
        prompt_only=request.max_tokens == 0,
        fit_output=request.max_tokens is None,
        echo=bool(request.echo),
        stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
        stream=bool(request.stream),
        timeout_s=request.timeout,
    )
    answer = CompletionAnswer(
        include_usage=bool(options.include_usage),
        usage_in_every_chunk=bool(options.continuous_usage_stats),
        tokens_as_ids=bool(request.return_tokens_as_token_ids),
        shows_prompt_logprobs=request.prompt_logprobs is not None,
    )
    return ParsedRequest(extended(call, request, model), answer)


def _refuse_unsupported(request: CompletionRequest) -> None:
    if request.suffix:
        raise InvalidRequest("the model cannot write text before a given suffix", param="suffix")
    if request.best_of not in (None, request.n or 1):
        raise InvalidRequest(
            f"best_of {quoted(request.best_of)} is not n: all choices that are made are returned", param="best_of"
        )
    if request.max_tokens == 0 and not request.echo and request.prompt_logprobs is None:
        raise InvalidRequest("without an answer there is only the prompt to return: set echo", param="max_tokens")
    both = request.echo and request.logprobs is not None and request.prompt_logprobs is not None
    if both and request.logprobs != request.prompt_logprobs:
        raise InvalidRequest("must be logprobs, which an echoed prompt has already", param="prompt_logprobs")


def _sampling(request: CompletionRequest, model: ServedModel) -> SamplingParams:
    max_tokens = DEFAULT_MAX_TOKENS if request.max_tokens is None else request.max_tokens
    sampling = sampling_params(request, model, max_tokens=max_tokens, logprobs=request.logprobs)
    of_echo = request.logprobs if request.echo else None
    return msgspec.structs.replace(
        sampling, prompt_logprobs=of_echo if request.prompt_logprobs is None else request.prompt_logprobs
    )


COMPLETIONS = Protocol(
    path="/v1/completions",
    name="completions",
    description="Continue texts or lists of token ids; streamed as server-sent events on request.",
    parse=parse,
    body_type=CompletionRequest,
    answer_type=Completion,
    streams=True,
)
