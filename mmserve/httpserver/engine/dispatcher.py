"""Tracks this worker's live sequences: submits them, hands out their replies, submits them again after a restart.

Invariant: exactly one terminal reply ends an attempt, and ``submit`` does not exit before it has arrived. A caller may
therefore release a lease once ``submit`` has exited. (If a sequence is failed because its engine kept dying, the
terminal reply is made here; no process can still read its images.)
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from mmserve.httpserver.engine.links import Destination
from mmserve.messages.logprobs import row_nbytes
from mmserve.messages.reply import ServerPhase, TokenReply
from mmserve.messages.request import SUSPECT_FROM, AbortRequest, GenerateRequest
from mmserve.metrics.client import MetricsClient
from mmserve.runtime.uncancelled import to_completion

ABORT_TIMEOUT_S = 15.0
"""Longest wait for the terminal reply to an abort. Only a dead engine needs longer."""

MAX_RESENDS = 4
"""A request is sent again this often without a token in between: once less than the supervisor restarts a group within
a minute. Deaths of visual servers are not counted: they find out themselves which image is the cause."""

logger = logging.getLogger(__name__)


class Links(Protocol):
    """Implemented by links.EngineLinks."""

    def choose(self, request: GenerateRequest) -> Destination: ...
    def send(self, destination: Destination, message: GenerateRequest | AbortRequest) -> None: ...


class MediaLost(Exception):
    """An image is no longer in the arena. Lease again, then submit with the new spans, ``next_attempt``,
    ``output_ids`` (the tokens so far, as int64) and ``num_prompt_logprobs`` (rows so far)."""

    def __init__(self, attempt: int, output_ids: bytes, num_prompt_logprobs: int) -> None:
        super().__init__(f"media lost in attempt {attempt}")
        self.next_attempt = attempt + 1
        self.output_ids = output_ids
        self.num_prompt_logprobs = num_prompt_logprobs


class _Sequence:
    """One sequence between ``submit`` and its terminal reply. Iterating yields its replies or raises MediaLost."""

    def __init__(self, request: GenerateRequest, destination: Destination) -> None:
        self.request = request
        self.destination = destination
        self.output = array("q", request.output_ids)
        self.num_prompt_logprobs = request.num_prompt_logprobs
        """Rows of the prompt's log-probabilities so far."""
        self.replies: asyncio.Queue[TokenReply | MediaLost] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.answered = False
        """True once a reply shows that the current attempt has reached the router."""
        self.num_resent = 0
        """Resends since the last token, because the engine died."""
        self.num_deaths = request.num_deaths
        """Deaths of the engine while it computed this sequence, since the last token."""
        self.is_computed = False
        """True from the router's notice that it computes this attempt. There is none before the first death."""
        self.has_embeddings = False
        """True once a reply shows that all of its images are encoded."""
        self.aborted = False
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

    def add_reply(self, reply: TokenReply) -> None:
        self.answered = True
        if reply.finish == "media_lost":
            self.lose_media()
        elif reply.token_ids or reply.finish or reply.prompt_logprobs:
            self._add_output(reply)
        else:
            self.is_computed = True
        if reply.finish is not None:
            self.ended.set()
        else:
            self.has_embeddings = True

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

    def lose_media(self) -> None:
        self.replies.put_nowait(MediaLost(self.request.attempt, self.output.tobytes(), self.num_prompt_logprobs))

    def fail(self, message: str) -> None:
        self.add_reply(TokenReply(id=self.request.id, attempt=self.request.attempt, finish="error", message=message))

    def next_attempt(self) -> GenerateRequest:
        """The request to send again. If its images are encoded, it need not pass a visual server once more; should one
        be gone, the ranks find that out (``media_lost``)."""
        spans = self.request.spans
        if self.has_embeddings:
            spans = tuple(msgspec.structs.replace(span, data=None) for span in spans)
        return msgspec.structs.replace(
            self.request,
            attempt=self.request.attempt + 1,
            spans=spans,
            output_ids=self.output.tobytes(),
            num_prompt_logprobs=self.num_prompt_logprobs,
            num_deaths=self.num_deaths,
        )


class Dispatcher:
    """One per worker; used from its event loop only."""

    def __init__(
        self, worker: int, links: Links, metrics: MetricsClient, *, abort_timeout_s: float = ABORT_TIMEOUT_S
    ) -> None:
        self._worker = worker
        self._links = links
        self._metrics = metrics
        self._abort_timeout_s = abort_timeout_s
        self._live: dict[str, _Sequence] = {}
        self._phase: ServerPhase | None = None

    @property
    def num_live(self) -> int:
        return len(self._live)

    @asynccontextmanager
    async def submit(self, request: GenerateRequest) -> AsyncIterator[AsyncIterator[TokenReply]]:
        """Send a sequence; iterate its replies, the last of which has ``finish``. Iterating may raise MediaLost.

        Leaving the context earlier aborts the sequence. The exit waits for the terminal reply, at most the abort
        timeout, even if it is cancelled.
        """
        sequence = _Sequence(request, self._links.choose(request))
        self._links.send(sequence.destination, request)
        self._live[request.id] = sequence  # after sending: a request that cannot be sent is not live
        try:
            yield sequence
        finally:
            try:
                if not sequence.ended.is_set():
                    await to_completion(self._abort(sequence))
            finally:
                del self._live[request.id]

    def deliver(self, reply: TokenReply) -> None:
        """Hand a reply to its sequence; drop replies of earlier attempts.

        Abort an unknown sequence: it belongs to an earlier process of this worker, which was killed.
        """
        sequence = self._live.get(reply.id)
        if sequence is None and reply.finish is None:
            self._links.send(None, AbortRequest(id=reply.id, reply_to=self._worker, attempt=reply.attempt))
        elif sequence is not None and reply.attempt == sequence.request.attempt and not sequence.ended.is_set():
            sequence.add_reply(reply)

    def lose(self, reply: TokenReply) -> None:
        """``deliver`` has failed. Send the reply's sequence again, so that its client misses no token."""
        sequence = self._live.get(reply.id)
        if sequence is None or reply.attempt != sequence.request.attempt or sequence.ended.is_set():
            return
        if not sequence.aborted:
            self._resend(sequence)
        elif reply.finish:
            sequence.ended.set()

    def on_phase(self, phase: ServerPhase) -> None:
        """Compare the epochs with the last phase: send again what a restarted process has lost."""
        before, self._phase = self._phase, phase
        if before is None:
            return
        for sequence in [sequence for sequence in self._live.values() if not sequence.ended.is_set()]:
            try:
                self._on_restart(sequence, before, phase)
            except Exception:  # the boundary of one sequence
                logger.exception("request %s could not be sent again", sequence.request.id)
                sequence.fail("the request could not be sent again after a restart")

    def _on_restart(self, sequence: _Sequence, before: ServerPhase, phase: ServerPhase) -> None:
        if sequence.aborted:
            self._repeat_abort(sequence, before, phase)
        elif phase.cache_epoch > before.cache_epoch and sequence.request.spans and not sequence.answered:
            sequence.lose_media()
        elif phase.engine_epoch > before.engine_epoch:
            self._resend_or_fail(sequence)
        elif not sequence.answered and _encoder_restarted(sequence, before, phase):
            self._resend(sequence)

    def _resend_or_fail(self, sequence: _Sequence) -> None:
        """Send the next attempt, or fail a sequence that killed the engine or was sent again MAX_RESENDS times."""
        if sequence.is_computed or not sequence.num_deaths:
            sequence.num_deaths += 1
        if sequence.num_deaths > SUSPECT_FROM or sequence.num_resent == MAX_RESENDS:
            # The request may be queued at the visual server, or may have reached the router already.
            for destination in {sequence.destination, None}:
                self._links.send(destination, _abort_request(sequence.request))
            sequence.fail(
                f"what computes this request was started again {sequence.num_resent + 1} times before it answered"
            )
            return
        sequence.num_resent += 1
        self._resend(sequence)

    def _resend(self, sequence: _Sequence) -> None:
        sequence.request = sequence.next_attempt()
        sequence.answered = sequence.is_computed = False
        sequence.destination = self._links.choose(sequence.request)
        self._links.send(sequence.destination, sequence.request)
        self._metrics.add("requests_resent", 1)

    def _repeat_abort(self, sequence: _Sequence, before: ServerPhase, phase: ServerPhase) -> None:
        """A new engine runs no old sequence, so the abort is done. A new visual server may have lost the abort: send it
        to the router, which answers every abort."""
        if phase.engine_epoch > before.engine_epoch:
            sequence.ended.set()
        elif _encoder_restarted(sequence, before, phase):
            self._links.send(None, _abort_request(sequence.request))

    async def _abort(self, sequence: _Sequence) -> None:
        sequence.aborted = True
        self._links.send(sequence.destination, _abort_request(sequence.request))
        try:
            await asyncio.wait_for(sequence.ended.wait(), self._abort_timeout_s)
        except TimeoutError:
            logger.warning(
                "no terminal reply to the abort of %s within %g s", sequence.request.id, self._abort_timeout_s
            )


def _encoder_restarted(sequence: _Sequence, before: ServerPhase, phase: ServerPhase) -> bool:
    """True if the visual server to which the sequence was sent has restarted between the two phases."""
    index = sequence.destination
    return index is not None and phase.visual_epoch(index) > before.visual_epoch(index)


def _abort_request(request: GenerateRequest) -> AbortRequest:
    return AbortRequest(id=request.id, reply_to=request.reply_to, attempt=request.attempt)
