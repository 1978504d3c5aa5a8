"""OpenAI chat completions: parses a body into a GenerateCall, sends TextDeltas as chunks or as one completion."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from starlette.types import Send

from mmserve.config.config import MAX_SEED
from mmserve.httpserver.api.openai.errors import error_body
from mmserve.httpserver.api.openai.fields import ChatRequest, decode, refuse_unsupported
from mmserve.httpserver.api.openai.logprobs import ChoiceLogprobs, logprobs_for
from mmserve.httpserver.api.openai.messages import ConversationReader
from mmserve.httpserver.api.response import SSE_DONE, send_events, send_json, sse_event
from mmserve.httpserver.call import GenerateCall, new_request_id
from mmserve.httpserver.media.split_media import SplitUrl, split_media
from mmserve.httpserver.output.deltas import Usage
from mmserve.httpserver.request.task import RequestTask
from mmserve.httpserver.served_model import ServedModel
from mmserve.messages.sampling import SamplingParams
from mmserve.runtime.errors import InvalidRequest, MmserveError

T = TypeVar("T")


class PromptDetails(msgspec.Struct):
    cached_tokens: int
    image_tokens: int


class WireUsage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class Delta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct):
    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None = None
    finish_reason: str | None = None


class Chunk(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: str = "chat.completion.chunk"
    usage: WireUsage | UnsetType | None = UNSET


class AnswerMessage(msgspec.Struct):
    content: str = ""
    role: str = "assistant"
    refusal: None = None


class AnswerChoice(msgspec.Struct):
    index: int
    message: AnswerMessage
    finish_reason: str | None = None
    logprobs: ChoiceLogprobs | None = None


class Completion(msgspec.Struct):
    id: str
    created: int
    model: str
    choices: list[AnswerChoice]
    usage: WireUsage
    object: str = "chat.completion"


def parse(body: bytes | bytearray, model: ServedModel, arrival_s: float) -> GenerateCall:
    """Validate a body. Large images are not copied: the call refers to ``body``.

    Raises InvalidRequest or ModelNotFound, naming the field.
    """
    rest, split_urls = split_media(body)
    if split_urls:
        # If this fails, parse the whole body: its error names fields as the client sent them.
        with suppress(MmserveError):
            return _parse(rest, split_urls, model, arrival_s)
    return _parse(body, {}, model, arrival_s)


def _parse(
    body: bytes | bytearray, split_urls: Mapping[str, SplitUrl], model: ServedModel, arrival_s: float
) -> GenerateCall:
    request = decode(body, ChatRequest)
    model.check_name(request.model)
    refuse_unsupported(request)
    reader = ConversationReader(model.max_images, split_urls, model.max_model_len)
    messages = reader.read(request.messages)
    options = request.stream_options
    return GenerateCall(
        request_id=new_request_id(),
        model=model.name,
        messages=messages,
        media=tuple(reader.media),
        sampling=_sampling(request, model),
        arrival_s=arrival_s,
        n=request.n or 1,
        stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
        stream=bool(request.stream),
        include_usage=bool(options and options.include_usage),
        cache_salt=request.cache_salt or "",
    )


def _sampling(request: ChatRequest, model: ServedModel) -> SamplingParams:
    defaults = model.sampling_defaults
    temperature = _or_default(request.temperature, defaults.temperature)
    max_tokens = _or_default(request.max_completion_tokens, request.max_tokens or 0)
    min_tokens = request.min_tokens or 0
    if max_tokens and min_tokens > max_tokens:
        raise InvalidRequest(f"min_tokens {min_tokens} is more than max_tokens {max_tokens}", param="min_tokens")
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        temperature=temperature,
        top_p=_or_default(request.top_p, defaults.top_p),
        top_k=max(0, _or_default(request.top_k, defaults.top_k)),
        min_p=_or_default(request.min_p, defaults.min_p),
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        repetition_penalty=_or_default(request.repetition_penalty, defaults.repetition_penalty),
        logit_bias=_logit_bias(request, model.vocab_size),
        seed=_seed(request.seed, model.seed, temperature),
        stop_token_ids=() if request.ignore_eos else model.eos_token_ids,
        logprobs=_logprobs(request),
    )


def _or_default(value: T | None, default: T) -> T:
    return default if value is None else value


def _seed(seed: int | None, server_seed: int, temperature: float) -> int:
    """The client's seed, or else the server's mixed with random bits, so that equal requests may differ."""
    if seed is not None:
        return seed & MAX_SEED
    return server_seed if temperature == 0 else server_seed ^ secrets.randbits(63)


def _logit_bias(request: ChatRequest, vocab_size: int) -> dict[int, float]:
    for token_id in request.logit_bias or {}:
        if not 0 <= token_id < vocab_size:
            raise InvalidRequest(f"token id {token_id} is not in the vocabulary", param="logit_bias")
    return request.logit_bias or {}


def _logprobs(request: ChatRequest) -> int | None:
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest("logprobs must be true for top_logprobs", param="top_logprobs")
    return request.top_logprobs or 0 if request.logprobs else None


async def send(task: RequestTask, send: Send) -> None:
    """Send the whole response, streamed or at once. Raises MmserveError only if nothing has been sent."""
    if task.call.stream:
        await send_events(send, _events(task))
    else:
        await send_json(send, msgspec.json.encode(await _complete(task)))


async def _complete(task: RequestTask) -> Completion:
    call = task.call
    choices = [AnswerChoice(index, AnswerMessage(), logprobs=logprobs_for(call)) for index in range(call.n)]
    async for delta in task.deltas:
        choice = choices[delta.index]
        choice.message.content += delta.text
        choice.finish_reason = delta.finish
        if choice.logprobs is not None:
            choice.logprobs.add(delta.logprobs)
    return Completion(_id(call), int(time.time()), call.model, choices, _usage(task.deltas.usage))


async def _events(task: RequestTask) -> AsyncGenerator[bytes, None]:
    """Server-sent events of a streamed answer. An error after the first delta becomes an event: the status is sent."""
    call, created, started = task.call, int(time.time()), set[int]()
    usage = None if call.include_usage else UNSET

    def chunk(choices: list[ChunkChoice], usage: WireUsage | UnsetType | None = usage) -> bytes:
        return sse_event(msgspec.json.encode(Chunk(_id(call), created, call.model, choices, usage=usage)))

    try:
        async for delta in task.deltas:
            if delta.index not in started:
                started.add(delta.index)
                yield chunk([ChunkChoice(delta.index, Delta(role="assistant", content=""))])
            if delta.text or delta.logprobs:
                yield chunk([ChunkChoice(delta.index, Delta(content=delta.text), logprobs_for(call, delta.logprobs))])
            if delta.finish is not None:
                yield chunk([ChunkChoice(delta.index, Delta(), finish_reason=delta.finish)])
        if call.include_usage:
            yield chunk([], _usage(task.deltas.usage))
    except MmserveError as error:
        if not started:
            raise
        yield sse_event(error_body(error))
    yield SSE_DONE


def _id(call: GenerateCall) -> str:
    return f"chatcmpl-{call.request_id}"


def _usage(usage: Usage) -> WireUsage:
    return WireUsage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptDetails(usage.cached_tokens, usage.image_tokens),
    )
