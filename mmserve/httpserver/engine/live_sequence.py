"""The state of one sequence between ``Dispatcher.submit`` and its terminal reply: its output so far, its attempts."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator

import msgspec

from mmserve.messages.logprobs import row_nbytes
from mmserve.messages.reply import TokenReply
from mmserve.messages.request import GenerateRequest


class MediaLost(Exception):
    """An image is no longer in the arena. Lease again, then submit with the new spans, ``next_attempt``,
    ``output_ids`` (the tokens so far, as int64) and ``num_prompt_logprobs`` (rows so far)."""

    def __init__(self, attempt: int, output_ids: bytes, num_prompt_logprobs: int) -> None:
        super().__init__(f"media lost in attempt {attempt}")
        self.next_attempt = attempt + 1
        self.output_ids = output_ids
        self.num_prompt_logprobs = num_prompt_logprobs


class LiveSequence:
    """Iterating yields the replies or raises MediaLost."""

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        self.output = array("q", request.output_ids)
        self.num_prompt_logprobs = request.num_prompt_logprobs
        """Rows of the prompt's log-probabilities so far."""
        self.replies: asyncio.Queue[TokenReply | MediaLost] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.answered = False
        """True once the current attempt has brought a token: its images are encoded, or were not needed."""
        self.num_resent = 0
        """Resends since the last token, because the engine died."""
        self.num_deaths = request.num_deaths
        """Deaths of the engine while it computed this sequence, since the last token."""
        self.is_computed = False
        """True from the router's notice that it computes this attempt. There is none before the first death."""
        self.aborted = False
        self.media_lost = False
        """True from a MediaLost on, which says the number of the next attempt: nobody else may make one."""
        self._row_nbytes = row_nbytes(request.sampling.prompt_logprobs or 0)

    def __aiter__(self) -> AsyncIterator[TokenReply]:
        return self

    async def __anext__(self) -> TokenReply:
        if self.ended.is_set() and self.replies.empty():
            raise StopAsyncIteration
        reply = await self.replies.get()
        if isinstance(reply, MediaLost):
            try:
                raise reply
            finally:
                del reply  # the exception refers to this frame, so the frame must not refer to it
        return reply

    @property
    def needs_encoder(self) -> bool:
        """True if an image is not known to be encoded: the visual server may be asked for it."""
        return any(span.data is not None for span in self.request.spans)

    def add_reply(self, reply: TokenReply) -> None:
        if reply.finish == "media_lost":
            self.lose_media()
        elif reply.token_ids or reply.finish or reply.prompt_logprobs:
            self._add_output(reply)
        else:
            self.is_computed = True
        if reply.finish is not None:
            self.ended.set()

    def _add_output(self, reply: TokenReply) -> None:
        """In ``output`` and ``replies``, or in neither."""
        num_before = len(self.output)
        try:
            self.output.extend(reply.token_ids)
            self.replies.put_nowait(reply)
        except MemoryError:
            del self.output[num_before:]
            raise
        if reply.prompt_logprobs:
            self.num_prompt_logprobs += len(reply.prompt_logprobs) // self._row_nbytes
        if reply.token_ids:
            self.num_resent = self.num_deaths = 0
            if not self.answered:
                self.answered = True
                self._mark_encoded(reply.not_encoded)

    def _mark_encoded(self, not_encoded: tuple[int, ...]) -> None:
        """All images but these are encoded: the next attempt does not ask a visual server for them. Should one be gone,
        the ranks find that out (``media_lost``)."""
        if not self.needs_encoder:
            return
        spans = tuple(
            span if span.item_id in not_encoded else msgspec.structs.replace(span, data=None)
            for span in self.request.spans
        )
        self.request = msgspec.structs.replace(self.request, spans=spans)

    def lose_media(self) -> None:
        self.media_lost = True
        self.replies.put_nowait(MediaLost(self.request.attempt, self.output.tobytes(), self.num_prompt_logprobs))

    def fail(self, message: str) -> None:
        self.add_reply(TokenReply(id=self.request.id, attempt=self.request.attempt, finish="error", message=message))

    def next_attempt(self) -> GenerateRequest:
        """The request to send again."""
        return msgspec.structs.replace(
            self.request,
            attempt=self.request.attempt + 1,
            output_ids=self.output.tobytes(),
            num_prompt_logprobs=self.num_prompt_logprobs,
            num_deaths=self.num_deaths,
        )
