"""OpenAI chat completions: sends AnswerDeltas as chunks, or as one completion that is made of the same pieces."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET, UnsetType
from starlette.types import Send

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.httpserver.api.call_ids import call_id
from mmserve.httpserver.api.openai.chat.objects import (
    AnswerChoice,
    AnswerMessage,
    Chunk,
    ChunkChoice,
    ChunkDelta,
    CompleteCall,
    Completion,
    Function,
    FunctionDelta,
    StopReason,
    Timing,
    TokenIds,
    ToolCallDelta,
)
from mmserve.httpserver.api.openai.errors import error_body
from mmserve.httpserver.api.openai.logprobs import logprobs_for
from mmserve.httpserver.api.openai.prompt_logprobs import RAW_NBYTES, encoded_prompt_logprobs
from mmserve.httpserver.api.openai.usage import WireUsage, wire_usage
from mmserve.httpserver.api.response import SSE_DONE, send_events, send_json, sse_event
from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.output.answer_delta import TOKEN_ID_NBYTES, AnswerDelta
from mmserve.httpserver.output.parsing.pieces import (
    CallArguments,
    CallEnd,
    CallStart,
    Piece,
    Reasoning,
    Text,
    characters,
)
from mmserve.httpserver.request.task import RequestTask
from mmserve.httpserver.stage_times import STAGES
from mmserve.messages.reply import FinishReason
from mmserve.runtime.errors import MmserveError


@dataclass(frozen=True)
class ChatAnswer:
    """Sends the answer, streamed or at once. ``include_usage``: as the last event of a stream."""

    include_usage: bool = False
    usage_in_every_chunk: bool = False
    include_reasoning: bool = True
    tokens_as_ids: bool = False
    """Log-probabilities name tokens by their ids in place of their texts."""
    image_token_id: int | None = None
    """Stands for each token of an image where the prompt's token ids are shown."""

    async def __call__(self, task: RequestTask, send: Send) -> None:
        """Raises MmserveError only if nothing has been sent."""
        if task.call.stream:
            await send_events(send, self._events(task), task)
        else:
            await send_json(send, msgspec.json.encode(await self._complete(task)))

    async def _complete(self, task: RequestTask) -> Completion:
        call = task.call
        folds = [_Fold(call, index, tokens_as_ids=self.tokens_as_ids) for index in range(call.num_choices)]
        prompt_logprobs: list[msgspec.Raw] = []
        async for delta in task.deltas:
            task.deltas.hold(folds[delta.index].add(delta))
            encoded = encoded_prompt_logprobs(delta.prompt_logprobs)
            task.deltas.hold(sum(2 * len(memoryview(one)) + RAW_NBYTES for one in encoded))
            prompt_logprobs += encoded
        completion = Completion(
            call.response_id,
            call.created_s,
            call.model,
            [fold.choice(self.include_reasoning) for fold in folds],
            wire_usage(task.deltas.usage),
        )
        completion.prompt_token_ids = self._prompt_ids(task)
        if call.sampling.prompt_logprobs is not None:
            completion.prompt_logprobs = prompt_logprobs
        return completion

    async def _events(self, task: RequestTask) -> AsyncGenerator[bytes, None]:
        """Server-sent events. An error after the first delta becomes an event: the status is sent by then."""
        call, created, started, first_s = task.call, task.call.created_s, False, 0.0
        calls = [_Calls() for _ in range(call.num_choices)]

        def event(
            choices: list[ChunkChoice],
            usage: WireUsage | UnsetType | None,
            prompt_ids: TokenIds = UNSET,
            timing: Timing | UnsetType = UNSET,
        ) -> bytes:
            made = Chunk(
                call.response_id, created, call.model, choices, usage=usage, prompt_token_ids=prompt_ids, timing=timing
            )
            return sse_event(msgspec.json.encode(made))

        def chunk(choice: ChunkChoice, prompt_ids: TokenIds = UNSET) -> bytes:
            if self.usage_in_every_chunk:
                return event([choice], wire_usage(task.deltas.usage), prompt_ids)
            return event([choice], None if self.include_usage else UNSET, prompt_ids)

        try:
            async for delta in task.deltas:
                if not started:
                    started, first_s = True, time.monotonic()
                    # All choices first, in order: clients append an unknown index to their list of choices.
                    for index in range(call.num_choices):
                        role = ChunkDelta(role="assistant", content="")
                        yield chunk(ChunkChoice(index, role), UNSET if index else self._prompt_ids(task))
                for choice in self._chunks(call, delta, calls[delta.index]):
                    yield chunk(choice)
            if self.include_usage or call.timed:
                usage = wire_usage(task.deltas.usage) if self.include_usage else UNSET
                yield event([], usage, timing=_timing(task, first_s))
        except MmserveError as error:
            if not started:
                raise
            yield sse_event(error_body(error))
        yield SSE_DONE

    def _prompt_ids(self, task: RequestTask) -> TokenIds:
        """The tokens of the prompt, if the call asked for them."""
        if not task.deltas.prompt_ids:
            return UNSET
        (ids,), image = task.deltas.prompt_ids, self.image_token_id or 0
        return [token_id if token_id < FIRST_VIRTUAL_TOKEN else image for token_id in ids]

    def _chunks(self, call: GenerateCall, delta: AnswerDelta, calls: _Calls) -> Iterator[ChunkChoice]:
        """The chunks of one delta. Its log-probabilities and token ids are in the first one."""
        logprobs = logprobs_for(call, delta.logprobs, as_ids=self.tokens_as_ids)
        token_ids: TokenIds = list(delta.token_ids) if call.view.token_ids else UNSET
        shown = [each for piece in delta.pieces if (each := self._delta(call, delta.index, piece)) is not None]
        if not shown and (delta.logprobs or (delta.token_ids and delta.finish is None)):
            shown = [ChunkDelta(content="")]
        for each in shown:
            yield ChunkChoice(delta.index, each, logprobs, token_ids=token_ids)
            logprobs, token_ids = logprobs_for(call), [] if call.view.token_ids else UNSET
        calls.num_complete += sum(isinstance(piece, CallEnd) for piece in delta.pieces)
        if delta.finish is not None:
            reason = _finish_reason(delta.finish, calls.num_complete)
            stop_reason = _stop_reason(delta.stop_reason)
            yield ChunkChoice(delta.index, ChunkDelta(), None, reason, stop_reason, token_ids)

    def _delta(self, call: GenerateCall, index: int, piece: Piece) -> ChunkDelta | None:
        match piece:
            case Text(text):
                return ChunkDelta(content=text)
            case Reasoning(text):
                return ChunkDelta(reasoning_content=text, reasoning=text) if self.include_reasoning else None
            case CallStart(number, name):
                start = FunctionDelta(name, "")
                id = call_id("call", call.answer_id, index, number)
                return ChunkDelta(tool_calls=[ToolCallDelta(number, id, "function", start)])
            case CallArguments(number, json):
                return ChunkDelta(tool_calls=[ToolCallDelta(number, function=FunctionDelta(arguments=json))])
            case CallEnd():
                return None


def _timing(task: RequestTask, first_s: float) -> Timing | UnsetType:
    """Of a call that asks for it. ``first_s``: the time of the first delta, of the monotonic clock."""
    if not task.call.timed or task.times is None:
        return UNSET
    begun_s, seconds = task.call.arrival_s, task.times.seconds
    stages_ms = {stage: round(1e3 * seconds[stage], 3) for stage in STAGES if stage in seconds}
    return Timing(round(1e3 * (first_s - begun_s), 3), round(1e3 * (time.monotonic() - begun_s), 3), stages_ms)


@dataclass
class _Calls:
    """Calls of one choice."""

    num_complete: int = 0


@dataclass
class _Fold:
    """One choice of a whole answer, from its deltas."""

    call: GenerateCall
    index: int
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[tuple[str, list[str]]] = field(default_factory=list)
    """Name and arguments of each."""
    num_complete: int = 0
    token_ids: list[int] = field(default_factory=list)
    finish: FinishReason | None = None
    stop_reason: int | str | None = None
    tokens_as_ids: bool = False

    def __post_init__(self) -> None:
        self.logprobs = logprobs_for(self.call)

    def add(self, delta: AnswerDelta) -> int:
        """Returns the bytes of memory that are kept of the delta, with its part of the response's JSON."""
        kept_nbytes = 0
        for piece in delta.pieces:
            kept_nbytes += sys.getsizeof(characters(piece))
            self._add_piece(piece)
        if self.logprobs is not None:
            kept_nbytes += self.logprobs.add(delta.logprobs, as_ids=self.tokens_as_ids) + RAW_NBYTES * len(
                delta.logprobs
            )
        self.token_ids += delta.token_ids
        kept_nbytes += TOKEN_ID_NBYTES // 2 * len(delta.token_ids)
        self.finish, self.stop_reason = delta.finish, delta.stop_reason
        return 2 * kept_nbytes  # the response's JSON is as long again

    def _add_piece(self, piece: Piece) -> None:
        match piece:
            case Text(text):
                self.text.append(text)
            case Reasoning(text):
                self.reasoning.append(text)
            case CallStart(_, name):
                self.calls.append((name, []))
            case CallArguments(number, json):
                self.calls[number][1].append(json)
            case CallEnd():
                self.num_complete += 1

    def choice(self, include_reasoning: bool) -> AnswerChoice:
        message = AnswerMessage("".join(self.text))
        if self.reasoning and include_reasoning:
            message.reasoning_content = message.reasoning = "".join(self.reasoning)
        if self.calls:
            message.tool_calls = [
                CompleteCall(call_id("call", self.call.answer_id, self.index, number), Function(name, "".join(json)))
                for number, (name, json) in enumerate(self.calls)
            ]
        if not message.content and (self.calls or self.reasoning):
            message.content = None
        reason = None if self.finish is None else _finish_reason(self.finish, self.num_complete)
        token_ids: TokenIds = self.token_ids if self.call.view.token_ids else UNSET
        return AnswerChoice(self.index, message, reason, self.logprobs, _stop_reason(self.stop_reason), token_ids)


def _finish_reason(finish: FinishReason, num_calls: int) -> str:
    """``tool_calls`` if the model ended its turn and made a call that is complete."""
    return "tool_calls" if finish == "stop" and num_calls else finish


def _stop_reason(reason: int | str | None) -> StopReason:
    return UNSET if reason is None else reason
