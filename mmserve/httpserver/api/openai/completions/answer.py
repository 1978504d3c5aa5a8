"""OpenAI completions: sends AnswerDeltas as chunks, or as one completion that is made of the same parts."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType
from starlette.types import Send

from mmserve.httpserver.api.openai.chat.objects import StopReason, TokenIds
from mmserve.httpserver.api.openai.completions.logprobs import ListedLogprobs
from mmserve.httpserver.api.openai.errors import error_body
from mmserve.httpserver.api.openai.prompt_logprobs import RAW_NBYTES, encoded_prompt_logprobs
from mmserve.httpserver.api.openai.usage import WireUsage, wire_usage
from mmserve.httpserver.api.response import SSE_DONE, send_events, send_json, sse_event
from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.output.answer_delta import TOKEN_ID_NBYTES, AnswerDelta
from mmserve.httpserver.output.deltas import DeltaStream
from mmserve.httpserver.output.echoed_prompt import EchoedPrompt, TextOffsets
from mmserve.httpserver.output.logprobs import TokenLogprobs
from mmserve.httpserver.request.task import RequestTask
from mmserve.runtime.errors import MmserveError


class CompletionChoice(msgspec.Struct):
    """A choice, or a part of it in a stream."""

    text: str
    index: int
    logprobs: ListedLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: StopReason = UNSET
    token_ids: TokenIds = UNSET
    prompt_token_ids: TokenIds = UNSET
    """In the first chunk of a choice."""
    prompt_logprobs: list[msgspec.Raw] | UnsetType | None = UNSET
    """See prompt_logprobs. Null but for the first choice of each prompt."""


class Completion(msgspec.Struct):
    """A whole completion, or a chunk of a stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: str = "text_completion"
    usage: WireUsage | UnsetType | None = UNSET


@dataclass(frozen=True)
class CompletionAnswer:
    """Sends the answer, streamed or at once. ``include_usage``: as the last event of a stream."""

    include_usage: bool = False
    usage_in_every_chunk: bool = False
    tokens_as_ids: bool = False
    """Log-probabilities name tokens by their ids in place of their texts."""
    shows_prompt_logprobs: bool = False

    async def __call__(self, task: RequestTask, send: Send) -> None:
        """Raises MmserveError only if nothing has been sent."""
        if task.call.stream:
            await send_events(send, self._events(task), task)
        else:
            await send_json(send, msgspec.json.encode(await self._complete(task)))

    async def _complete(self, task: RequestTask) -> Completion:
        call = task.call
        parts = self._parts(call)
        texts: list[list[str]] = [[] for _ in parts]
        choices = [self._new_choice(call, index, part) for index, part in enumerate(parts)]
        async for delta in task.deltas:
            part = parts[delta.index].next(delta, task.deltas)
            choice = choices[delta.index]
            kept_nbytes = self._add_tokens(choice, part, delta)
            texts[delta.index].append(part.text)
            kept_nbytes += sys.getsizeof(part.text)
            if choice.logprobs is not None and part.logprobs is not None:
                kept_nbytes += choice.logprobs.extend(part.logprobs)
            choice.finish_reason, choice.stop_reason = part.finish_reason, part.stop_reason
            task.deltas.hold(2 * kept_nbytes)  # the response's JSON is as long again
        for choice in choices:
            choice.text = "".join(texts[choice.index])
        return Completion(_id(call), call.created_s, call.model, choices, usage=wire_usage(task.deltas.usage))

    def _parts(self, call: GenerateCall) -> list[ChoiceParts]:
        return [ChoiceParts(call, index, tokens_as_ids=self.tokens_as_ids) for index in range(call.num_choices)]

    def _new_choice(self, call: GenerateCall, index: int, part: ChoiceParts) -> CompletionChoice:
        choice = CompletionChoice("", index, part.new_logprobs())
        if self.shows_prompt_logprobs:
            choice.prompt_logprobs = None if index % call.n else []
        if call.view.token_ids:
            choice.token_ids = []
        return choice

    def _add_tokens(self, choice: CompletionChoice, part: CompletionChoice, delta: AnswerDelta) -> int:
        """What vLLM's fields show of the tokens. Returns the bytes of memory that are kept."""
        kept_nbytes = 0
        if isinstance(choice.token_ids, list):
            choice.token_ids += delta.token_ids
            kept_nbytes += TOKEN_ID_NBYTES // 2 * len(delta.token_ids)
        if isinstance(part.prompt_token_ids, list):
            choice.prompt_token_ids = part.prompt_token_ids
            kept_nbytes += TOKEN_ID_NBYTES // 2 * len(part.prompt_token_ids)
        if isinstance(choice.prompt_logprobs, list):
            encoded = encoded_prompt_logprobs(delta.prompt_logprobs)
            choice.prompt_logprobs += encoded
            kept_nbytes += sum(len(memoryview(one)) + RAW_NBYTES for one in encoded)
        return kept_nbytes

    async def _events(self, task: RequestTask) -> AsyncGenerator[bytes, None]:
        """Server-sent events. An error after the first chunk becomes an event: the status is sent by then."""
        call, created, started = task.call, task.call.created_s, False
        parts = self._parts(call)

        def event(choices: list[CompletionChoice], usage: WireUsage | UnsetType | None) -> bytes:
            return sse_event(msgspec.json.encode(Completion(_id(call), created, call.model, choices, usage=usage)))

        try:
            async for delta in task.deltas:
                part = parts[delta.index].next(delta, task.deltas)
                if part.text or part.logprobs is not None or part.token_ids or part.finish_reason is not None:
                    started = True
                    usage = None if self.include_usage else UNSET
                    yield event([part], wire_usage(task.deltas.usage) if self.usage_in_every_chunk else usage)
            if self.include_usage:
                yield event([], wire_usage(task.deltas.usage))
        except MmserveError as error:
            if not started:
                raise
            yield sse_event(error_body(error))
        yield SSE_DONE


class ChoiceParts:
    """Makes the parts of one choice from its deltas: first those of its prompt if it is echoed, then those of its text.

    With log-probabilities a part of the prompt has the text of the tokens that it scores.
    """

    def __init__(self, call: GenerateCall, index: int, *, tokens_as_ids: bool = False) -> None:
        self._call = call
        self._index = index
        self._as_ids = tokens_as_ids
        self._echoed: EchoedPrompt | None = None
        self._num_shown = 0
        """Characters of the echoed prompt."""
        self._started = False
        self._output = TextOffsets()

    def new_logprobs(self) -> ListedLogprobs | None:
        """Empty lists; None if the call asks for no log-probabilities."""
        return None if self._call.sampling.logprobs is None else ListedLogprobs()

    def next(self, delta: AnswerDelta, answer: DeltaStream) -> CompletionChoice:
        """The part of a delta of ``answer``."""
        prompt_ids: TokenIds = UNSET
        if not self._started:
            prompt_ids = self._start(answer)
        self._started = True
        listed = ListedLogprobs()
        text = self._prompt_text(delta, listed) + delta.text
        for token in delta.logprobs:
            spelling = token.spelling
            data = spelling.text.encode() if spelling.data is None else spelling.data  # special tokens may be shown
            listed.add(token, self._output.add(data), as_ids=self._as_ids)
        stop_reason = UNSET if delta.stop_reason is None else delta.stop_reason
        token_ids: TokenIds = list(delta.token_ids) if self._call.view.token_ids else UNSET
        logprobs = listed if listed.tokens else None
        return CompletionChoice(text, self._index, logprobs, delta.finish, stop_reason, token_ids, prompt_ids)

    def _start(self, answer: DeltaStream) -> TokenIds:
        """The tokens of the prompt, if the call asked for them."""
        of_prompt = self._index // self._call.n
        if answer.echoed:
            self._echoed = answer.echoed[of_prompt]
            self._tokens = self._echoed.tokens()
            self._output = TextOffsets(len(self._echoed.text))
        return list(answer.prompt_ids[of_prompt]) if answer.prompt_ids else UNSET

    def _prompt_text(self, delta: AnswerDelta, listed: ListedLogprobs) -> str:
        """The next piece of the echoed prompt: as far as it is scored, and all of it when the answer begins."""
        if self._echoed is None:
            return ""
        start = self._num_shown
        for scored in delta.prompt_logprobs:
            token = next(self._tokens)
            self._num_shown = token.end
            if scored is None:
                listed.add_unscored(token, as_ids=self._as_ids)
            else:
                placed = TokenLogprobs(scored.vocabulary, scored.packed, token.first)
                listed.add(placed, token.start, as_ids=self._as_ids)
        if delta.num_tokens or delta.finish is not None:
            self._num_shown = len(self._echoed.text)
        return self._echoed.text[start : self._num_shown]


def _id(call: GenerateCall) -> str:
    return f"cmpl-{call.client_request_id or call.answer_id}"
