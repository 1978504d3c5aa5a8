"""One choice of a request: its attempts at the engine, and what becomes of their replies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace

import msgspec

from mmserve.httpserver import stage_times
from mmserve.httpserver.call import GenerateCall, LeasedItem, MediaItem
from mmserve.httpserver.engine.dispatcher import Dispatcher
from mmserve.httpserver.engine.live_sequence import MediaLost
from mmserve.httpserver.mm_cache.alloc_path import AllocPath
from mmserve.httpserver.output.deltas import DeltaStream
from mmserve.httpserver.output.detokenizer import Detokenizer
from mmserve.httpserver.prompt.media_spans import leased_again
from mmserve.httpserver.request.metrics import ChoiceMetrics
from mmserve.httpserver.request.token_bans import no_token_allowed
from mmserve.messages.relay import Sampled
from mmserve.messages.reply import TokenReply
from mmserve.messages.request import GenerateRequest
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.runtime.errors import GrammarError, MediaError, MmserveError, Overloaded, Unavailable
from mmserve.runtime.retry_after import AFTER_CACHE_RESTART_S

MAX_LEASES = 4
"""The first lease, and three more if images are lost to a restart or an eviction."""


def lease(
    alloc_path: AllocPath, lease_id: str, items: Sequence[MediaItem]
) -> AbstractAsyncContextManager[Sequence[LeasedItem]]:
    """Leases of the items. Without any the cache server is not called, so text requests never wait for it."""
    return alloc_path.leases.hold(lease_id, items) if items else nullcontext(())


@dataclass(frozen=True)
class Choice:
    """One of a request's answers. ``request``: its first attempt, for which the images are leased."""

    call: GenerateCall
    alloc_path: AllocPath
    items: Sequence[MediaItem]
    request: GenerateRequest
    text: Detokenizer
    deltas: DeltaStream
    latencies: ChoiceMetrics
    dispatcher: Dispatcher
    metrics: MetricsClient
    is_relayed: bool = False
    """A front is told the tokens of each delta."""

    async def generate(self) -> None:
        """Generate to the end; lease and submit again when the images are lost. Raises MmserveError."""
        request = self.request
        try:
            return await self._stream(request)
        except MediaLost as lost:
            request = _next_attempt(request, lost)
        for number in range(2, MAX_LEASES + 1):
            self.metrics.add("requests_resent", 1)
            async with lease(self.alloc_path, f"{request.id}.{number}", self.items) as leased:
                prompt_ids, spans = leased_again(request.prompt_ids, request.spans, leased)
                request = msgspec.structs.replace(request, prompt_ids=prompt_ids, spans=spans)
                try:
                    return await self._stream(request)
                except MediaLost as lost:
                    request = _next_attempt(request, lost)
        raise Unavailable(
            f"an image was lost {MAX_LEASES} times before it was used", retry_after_s=AFTER_CACHE_RESTART_S
        )

    async def _stream(self, request: GenerateRequest) -> None:
        """Submit one attempt and pass its text on. On a stop string, leaving ``submit`` aborts the sequence."""
        async with self.dispatcher.submit(request) as replies:
            async for reply in replies:
                _raise_failure(self.call, reply)
                stage_times.record_engine(reply.stage_times)
                delta = self.text.push(reply)
                if self.is_relayed:
                    delta = replace(delta, sampled=_sampled(delta.index, reply))
                self.latencies.record(delta)
                self.deltas.push(delta)
                if delta.finish is not None:
                    return


def _sampled(index: int, reply: TokenReply) -> Sampled:
    return Sampled(index, reply.token_ids, reply.logprobs, reply.finish, reply.num_cached_tokens)


def _next_attempt(request: GenerateRequest, lost: MediaLost) -> GenerateRequest:
    return msgspec.structs.replace(
        request,
        attempt=lost.next_attempt,
        output_ids=lost.output_ids,
        num_prompt_logprobs=lost.num_prompt_logprobs,
    )


def _raise_failure(call: GenerateCall, reply: TokenReply) -> None:
    """Raise the client's error for a terminal reply that reports a failure."""
    if reply.finish == "media_error":
        param = call.media[reply.media_index].param if reply.media_index is not None else None
        raise MediaError(reply.message or "the image could not be decoded", param=param)
    if reply.finish == "grammar_error":
        raise GrammarError(reply.message)
    if reply.finish == "no_token_allowed":
        raise no_token_allowed(call.sampling, call.grammar_param)
    if reply.finish == "error":
        raise MmserveError(reply.message or "the engine could not compute this request")
    if reply.finish == "overloaded":
        raise Overloaded(reply.message, retry_after_s=reply.retry_after_s)
    if reply.finish == "abort":
        message = reply.message or "the engine dropped this request"
        raise Unavailable(message, retry_after_s=reply.retry_after_s)
