"""Anthropic's ``/v1/messages``: sends AnswerDeltas as server-sent events, or as one message made of the same events."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType
from starlette.types import Send

from mmserve.httpserver.api.anthropic.content import Block, ContentFold, ContentWriter
from mmserve.httpserver.api.anthropic.errors import error_body
from mmserve.httpserver.api.call_ids import call_id
from mmserve.httpserver.api.response import send_events, send_json
from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.output.answer_delta import AnswerDelta
from mmserve.httpserver.output.deltas import Usage
from mmserve.httpserver.output.parsing.pieces import characters
from mmserve.httpserver.request.task import RequestTask
from mmserve.runtime.errors import MmserveError

T = TypeVar("T")

PING_S = 10.0
"""Clients give up on a stream that is silent for about a minute. An image may take that long to enter the cache."""


class OutputTokensDetails(msgspec.Struct):
    """Null in ``message_start``, before there are any."""

    thinking_tokens: int


class WireUsage(msgspec.Struct):
    """Without the tokens found in the prefix cache, ``input_tokens`` and ``cache_read_input_tokens`` are the prompt."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_creation: None = None
    inference_geo: None = None
    output_tokens_details: OutputTokensDetails | None = None
    server_tool_use: None = None
    service_tier: str = "standard"


class DeltaUsage(msgspec.Struct):
    """The final counts of a stream."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0
    output_tokens_details: OutputTokensDetails | None = None
    server_tool_use: None = None


class AppliedEdits(msgspec.Struct):
    applied_edits: tuple[()] = ()


class AnswerMessage(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    model: str
    content: list[Block]
    usage: WireUsage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: None = None
    container: None = None
    role: str = "assistant"
    context_management: AppliedEdits | UnsetType = UNSET


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    message: AnswerMessage


class Stop(msgspec.Struct):
    stop_reason: str
    stop_sequence: str | None = None
    stop_details: None = None
    container: None = None


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    delta: Stop
    usage: DeltaUsage
    context_management: AppliedEdits | UnsetType = UNSET


class MessageStop(msgspec.Struct, tag_field="type", tag="message_stop"):
    pass


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    pass


class _Wait(Enum):
    PING = "ping"


@dataclass(frozen=True)
class MessageAnswer:
    """Sends the answer, streamed or at once. ``names_applied_edits``: the client has asked to edit its context, and is
    told that nothing was."""

    shows_thinking: bool = True
    names_applied_edits: bool = False

    async def __call__(self, task: RequestTask, send: Send) -> None:
        """Raises MmserveError only if nothing has been sent."""
        if task.call.stream:
            await send_events(send, self._events(task), task)
        else:
            await send_json(send, msgspec.json.encode(await self._whole(task)))

    async def _whole(self, task: RequestTask) -> AnswerMessage:
        writer, fold, last = self._writer(task.call), ContentFold(), None
        async for delta in task.deltas:
            last = delta
            # The response's JSON is as long again.
            task.deltas.hold(2 * sum(sys.getsizeof(characters(piece)) for piece in delta.pieces))
            for piece in delta.pieces:
                for event in writer.events(piece):
                    fold.add(event)
        usage = task.deltas.usage
        stop = _stop(task.call, last, writer, usage)
        uncached = usage.prompt_tokens - usage.cached_tokens
        wire_usage = WireUsage(uncached, usage.completion_tokens, usage.cached_tokens)
        wire_usage.output_tokens_details = OutputTokensDetails(usage.reasoning_tokens)
        message = self._message(task.call, wire_usage)
        message.content = fold.blocks()
        message.stop_reason, message.stop_sequence = stop.stop_reason, stop.stop_sequence
        return message

    async def _events(self, task: RequestTask) -> AsyncGenerator[bytes, None]:
        """Server-sent events. An error after the first one becomes an event: the status is sent."""
        call, writer, started = task.call, self._writer(task.call), False
        try:
            while (prompt_tokens := await _or_ping(task.deltas.prompt_tokens())) is _Wait.PING:
                started = True
                yield _sse(Ping())
            yield _sse(MessageStart(self._message(call, WireUsage(prompt_tokens, 0))))
            started, last = True, None
            while (delta := await _or_ping(anext(task.deltas, None))) is not None:
                if delta is _Wait.PING:
                    yield _sse(Ping())
                    continue
                last = delta
                for piece in delta.pieces:
                    for event in writer.events(piece):
                        yield _sse(event)
            for event in writer.end():
                yield _sse(event)
            yield _sse(self._last(call, last, writer, task.deltas.usage))
            yield _sse(MessageStop())
        except MmserveError as error:
            if not started:
                raise
            yield b"event: error\ndata: " + error_body(error, call.http_request_id or None) + b"\n\n"

    def _writer(self, call: GenerateCall) -> ContentWriter:
        return ContentWriter(
            lambda number: call_id("toolu", call.answer_id, 0, number), shows_thinking=self.shows_thinking
        )

    def _message(self, call: GenerateCall, usage: WireUsage) -> AnswerMessage:
        edits = AppliedEdits() if self.names_applied_edits else UNSET
        return AnswerMessage(f"msg_{call.answer_id}", call.model, [], usage, context_management=edits)

    def _last(self, call: GenerateCall, last: AnswerDelta | None, writer: ContentWriter, usage: Usage) -> MessageDelta:
        return MessageDelta(
            _stop(call, last, writer, usage),
            DeltaUsage(
                usage.prompt_tokens - usage.cached_tokens,
                usage.completion_tokens,
                usage.cached_tokens,
                output_tokens_details=OutputTokensDetails(usage.reasoning_tokens),
            ),
            AppliedEdits() if self.names_applied_edits else UNSET,
        )


def _stop(call: GenerateCall, last: AnswerDelta | None, writer: ContentWriter, usage: Usage) -> Stop:
    """Why the answer ended. ``last``: its last delta."""
    assert last is not None, "an answer has a delta with its end"
    if last.finish == "length":
        is_cut = usage.completion_tokens < call.sampling.max_tokens
        return Stop("model_context_window_exceeded" if is_cut else "max_tokens")
    if isinstance(last.stop_reason, str):
        return Stop("stop_sequence", last.stop_reason)
    return Stop("tool_use" if writer.num_calls else "end_turn")


async def _or_ping(awaitable: Awaitable[T]) -> T | Literal[_Wait.PING]:
    """The result, or PING after ``PING_S`` without one."""
    try:
        async with asyncio.timeout(PING_S):
            return await awaitable
    except TimeoutError:
        return _Wait.PING


def _sse(event: Any) -> bytes:
    name: str = event.__struct_config__.tag
    return b"event: " + name.encode() + b"\ndata: " + msgspec.json.encode(event) + b"\n\n"
