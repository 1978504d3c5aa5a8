"""OpenAI chat completions: parses a body into a GenerateCall, sends TextDeltas as chunks or as one completion."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Mapping

import msgspec
from msgspec import UNSET, UnsetType
from starlette.types import Send

from mmserve.httpserver.api.json_limits import QUICK_NBYTES, check_values, max_json_nbytes, too_much_text
from mmserve.httpserver.api.openai.errors import error_body
from mmserve.httpserver.api.openai.fields import ChatRequest, decode, refuse_unsupported
from mmserve.httpserver.api.openai.logprobs import ChoiceLogprobs, logprobs_for
from mmserve.httpserver.api.openai.messages import ConversationReader, UrlsLeft
from mmserve.httpserver.api.openai.response_format import response_grammar
from mmserve.httpserver.api.openai.sampling import requested_logprobs, sampling_params
from mmserve.httpserver.api.openai.usage import WireUsage, wire_usage
from mmserve.httpserver.api.response import SSE_DONE, send_events, send_json, sse_event
from mmserve.httpserver.call import GenerateCall, new_request_id
from mmserve.httpserver.grammars import constrained
from mmserve.httpserver.media.split_media import SplitUrl, TooMuchText, put_back, split_media
from mmserve.httpserver.request.task import RequestTask
from mmserve.httpserver.served_model import ServedModel
from mmserve.runtime.errors import MmserveError

_RAW_NBYTES = 120
"""Of the object that holds one token's log-probabilities as JSON."""


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


async def parse_request(body: bytes | bytearray, model: ServedModel, arrival_s: float) -> GenerateCall:
    """``parse``, in a thread if its work is more than a few milliseconds."""
    rest, urls = _split(body, model)
    if len(rest) <= QUICK_NBYTES:
        return _parse_split(rest, urls, model, arrival_s)
    return await asyncio.to_thread(_parse_split, rest, urls, model, arrival_s)


def parse(body: bytes | bytearray, model: ServedModel, arrival_s: float) -> GenerateCall:
    """Validate a body. Large images are not copied: the call refers to ``body``.

    Raises InvalidRequest or ModelNotFound, naming the field.
    """
    return _parse_split(*_split(body, model), model, arrival_s)


def _split(body: bytes | bytearray, model: ServedModel) -> tuple[bytes | bytearray, Mapping[str, SplitUrl]]:
    try:
        return split_media(body, max_json_nbytes(model.max_model_len))
    except TooMuchText:
        raise too_much_text(model.max_model_len) from None


def _parse_split(
    rest: bytes | bytearray, urls: Mapping[str, SplitUrl], model: ServedModel, arrival_s: float
) -> GenerateCall:
    """Parse a body without its ``urls``. They are put back where they are no images, or where an error may name them,
    and then are so much text."""
    check_values(rest)
    try:
        return _parse(rest, urls, model, arrival_s)
    except UrlsLeft as error:
        left = error.urls
    except MmserveError:
        if urls:
            _parse(put_back(rest, urls, shortened=True), {}, model, arrival_s)
        raise
    if len(rest) + sum(len(url.data) for url in left.values()) > max_json_nbytes(model.max_model_len):
        raise too_much_text(model.max_model_len)
    images = {mark: url for mark, url in urls.items() if mark not in left}
    return _parse(put_back(rest, left), images, model, arrival_s)


def _parse(
    body: bytes | bytearray, split_urls: Mapping[str, SplitUrl], model: ServedModel, arrival_s: float
) -> GenerateCall:
    request = decode(body, ChatRequest)
    model.check_name(request.model)
    refuse_unsupported(request)
    grammar, grammar_param = response_grammar(request.response_format)
    reader = ConversationReader(model.max_images, split_urls, model.max_model_len)
    messages = reader.read(request.messages)
    options = request.stream_options
    sampling = sampling_params(
        request,
        model,
        max_tokens=request.max_completion_tokens or request.max_tokens or 0,
        logprobs=requested_logprobs(request),
    )
    return GenerateCall(
        request_id=new_request_id(),
        model=model.name,
        messages=messages,
        media=tuple(reader.media),
        sampling=constrained(sampling, grammar, model.eos_token_ids, grammar_param),
        grammar_param=grammar_param,
        arrival_s=arrival_s,
        n=request.n or 1,
        stop=(request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ()),
        stream=bool(request.stream),
        include_usage=bool(options and options.include_usage),
        timeout_s=request.timeout,
        cache_salt=request.cache_salt or "",
    )


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
        kept_nbytes = sys.getsizeof(delta.text)
        if choice.logprobs is not None:
            kept_nbytes += choice.logprobs.add(delta.logprobs) + _RAW_NBYTES * len(delta.logprobs)
        task.deltas.hold(2 * kept_nbytes)  # the response's JSON is as long again
    return Completion(call.response_id, int(time.time()), call.model, choices, wire_usage(task.deltas.usage))


async def _events(task: RequestTask) -> AsyncGenerator[bytes, None]:
    """Server-sent events of a streamed answer. An error after the first delta becomes an event: the status is sent."""
    call, created, started = task.call, int(time.time()), set[int]()
    usage = None if call.include_usage else UNSET

    def chunk(choices: list[ChunkChoice], usage: WireUsage | UnsetType | None = usage) -> bytes:
        return sse_event(msgspec.json.encode(Chunk(call.response_id, created, call.model, choices, usage=usage)))

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
            yield chunk([], wire_usage(task.deltas.usage))
    except MmserveError as error:
        if not started:
            raise
        yield sse_event(error_body(error))
    yield SSE_DONE
