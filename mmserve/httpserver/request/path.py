"""THE request path: gate, media, lease, prompt, engine, text, in this order; the helpers never call each other.

Knows no protocol. Each request runs in a task of its own (``flights``), so that a client's leaving is one
cancellation and everything held is given back in order, after the engine let go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from mmserve.httpserver.call import GenerateCall, LeasedItem, MediaItem, MediaRef, Prompt
from mmserve.httpserver.engine.dispatcher import Dispatcher, MediaLost
from mmserve.httpserver.mm_cache.alloc_path import AllocPath, AllocPaths
from mmserve.httpserver.output.deltas import DeltaStream
from mmserve.httpserver.output.detokenizer import Detokenizer
from mmserve.httpserver.output.vocabulary import Vocabulary
from mmserve.httpserver.request.metrics import ChoiceMetrics, count_request
from mmserve.httpserver.request.resources import RequestResources
from mmserve.messages.reply import TokenReply
from mmserve.messages.request import GenerateRequest, choice_id
from mmserve.messages.sampling import SamplingParams
from mmserve.metrics.client import MetricsClient
from mmserve.runtime.errors import ContextLengthExceeded, MediaError, MmserveError, Overloaded, Unavailable

MAX_LEASES = 4
"""The first lease and three more when images are lost to a restart or an eviction."""
_LONG_PROMPT_CHARS = 20_000
"""Templating and tokenizing more than this would hold up the event loop for milliseconds."""
_MESSAGE_CHARS = 80
"""A message that is empty takes as long as this much text."""


class Prompting(Protocol):
    def build(self, call: GenerateCall, leased: Sequence[LeasedItem]) -> Prompt: ...


@dataclass(frozen=True)
class _Choice:
    """One of n answers: its request to the engine and where its text goes."""

    call: GenerateCall
    lane: AllocPath
    items: Sequence[MediaItem]
    request: GenerateRequest
    text: Detokenizer
    deltas: DeltaStream
    metrics: ChoiceMetrics


@dataclass(frozen=True)
class RequestPath:
    """The helpers of one worker, in the order a request meets them."""

    worker: int
    max_model_len: int
    max_fetched_nbytes: int
    """Of one request's images in all."""
    lanes: AllocPaths
    prompts: Prompting
    dispatcher: Dispatcher
    vocabulary: Vocabulary
    metrics: MetricsClient

    async def generate(self, call: GenerateCall, deltas: DeltaStream, holdings: RequestResources) -> None:
        """Answer ``call`` into ``deltas``; returns when no lease is held any more. Raises MmserveError.

        The caller keeps no images: what it brought in is let go here, form by form.
        """
        lane = self.lanes.choose()
        items = await self._read(lane, call, holdings)
        # From here on nobody holds the body with its base64 text.
        call = replace(call, media=tuple(MediaRef("", ref.param) for ref in call.media))
        async with _hold(lane, call.request_id, items) as leased:
            prompt = await self._build(call, leased)
            deltas.open(len(prompt.ids), sum(span.num_tokens for span in prompt.spans))
            async with asyncio.TaskGroup() as choices:
                for index, request in enumerate(self._requests(call, prompt)):
                    text = Detokenizer(self.vocabulary, index, call.stop, call.sampling.min_tokens)
                    metrics = ChoiceMetrics(self.metrics, call)
                    choice = _Choice(call, lane, items, request, text, deltas, metrics)
                    choices.create_task(self._answer(choice))

    async def _read(self, lane: AllocPath, call: GenerateCall, holdings: RequestResources) -> list[MediaItem]:
        """The images. Before any of them is fetched there is room for as much as one request may fetch."""
        if not call.media:
            holdings.keep(0)
            return []
        if not all(ref.is_inline for ref in call.media):
            await holdings.fetch(self.max_fetched_nbytes)
        items = await lane.media.read(call.media, call.cache_salt)
        inline = sum(len(item.data) for item, ref in zip(items, call.media, strict=True) if ref.is_inline)
        holdings.keep(inline, sum(len(item.data) for item in items) - inline)
        return items

    async def _answer(self, choice: _Choice) -> None:
        """One choice to its end, through lost images."""
        request = choice.request
        try:
            return await self._follow(choice, request)
        except MediaLost as lost:
            request = _resumed(request, lost)
        for lease in range(2, MAX_LEASES + 1):
            self.metrics.add("requests_resent", 1)
            async with _hold(choice.lane, f"{request.id}.{lease}", choice.items) as leased:
                prompt = await self._build(choice.call, leased)
                request = msgspec.structs.replace(request, prompt_ids=prompt.ids.tobytes(), spans=prompt.spans)
                try:
                    return await self._follow(choice, request)
                except MediaLost as lost:
                    request = _resumed(request, lost)
        raise Unavailable(f"an image was lost {MAX_LEASES} times before it was used", retry_after_s=1.0)

    async def _follow(self, choice: _Choice, request: GenerateRequest) -> None:
        """Send once, pass the text on until it ends; a stop string leaves early, which aborts."""
        async with self.dispatcher.submit(request) as replies:
            async for reply in replies:
                _raise_failure(choice.call, reply)
                delta = choice.text.push(reply)
                choice.metrics.saw(delta)
                choice.deltas.push(delta)
                if delta.finish is not None:
                    return

    async def _build(self, call: GenerateCall, leased: Sequence[LeasedItem]) -> Prompt:
        parts = [part for message in call.messages for part in message.content]
        chars = sum(len(part.text) for part in parts if hasattr(part, "text"))
        if chars + _MESSAGE_CHARS * len(parts) > _LONG_PROMPT_CHARS:
            return await asyncio.to_thread(self.prompts.build, call, leased)
        return self.prompts.build(call, leased)

    def _requests(self, call: GenerateCall, prompt: Prompt) -> list[GenerateRequest]:
        sampling = self._fit(call.sampling, len(prompt.ids))
        count_request(self.metrics, call, len(prompt.ids), sampling.max_tokens)
        prompt_ids = prompt.ids.tobytes()
        return [
            GenerateRequest(
                id=choice_id(call.request_id, index),
                reply_to=self.worker,
                prompt_ids=prompt_ids,
                spans=prompt.spans,
                sampling=msgspec.structs.replace(sampling, seed=(sampling.seed + index) % (1 << 63)),
                arrival_s=call.arrival_s,
            )
            for index in range(call.n)
        ]

    def _fit(self, sampling: SamplingParams, prompt_tokens: int) -> SamplingParams:
        """Without max_tokens the rest of the context; asking for more than the rest is an error, never a cut."""
        room = self.max_model_len - prompt_tokens
        if room < max(1, sampling.max_tokens):
            wanted = f" and {sampling.max_tokens} of output" if sampling.max_tokens else ""
            raise ContextLengthExceeded(
                f"{prompt_tokens} prompt tokens{wanted} do not fit the context of {self.max_model_len} tokens",
                param="max_tokens" if room > 0 else "messages",
            )
        max_tokens = sampling.max_tokens or room
        return msgspec.structs.replace(sampling, max_tokens=max_tokens, min_tokens=min(sampling.min_tokens, max_tokens))


def _hold(
    lane: AllocPath, lease_id: str, items: Sequence[MediaItem]
) -> AbstractAsyncContextManager[Sequence[LeasedItem]]:
    """Text requests never wait for the cache server."""
    return lane.leases.hold(lease_id, items) if items else nullcontext(())


def _resumed(request: GenerateRequest, lost: MediaLost) -> GenerateRequest:
    return msgspec.structs.replace(request, attempt=lost.next_attempt, output_ids=lost.output_ids)


def _raise_failure(call: GenerateCall, reply: TokenReply) -> None:
    """Turn a failed terminal reply into the error the client sees."""
    if reply.finish == "media_error":
        param = call.media[reply.media_index].param if reply.media_index is not None else None
        raise MediaError(reply.message or "the image could not be decoded", param=param)
    if reply.finish == "error":
        raise MmserveError(reply.message or "the engine could not compute this request")
    if reply.finish == "overloaded":
        raise Overloaded(reply.message, retry_after_s=5.0)
    if reply.finish == "abort":
        raise Unavailable(reply.message or "the engine dropped this request", retry_after_s=1.0)
