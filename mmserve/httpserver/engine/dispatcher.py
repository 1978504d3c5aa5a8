"""Tracks this worker's live sequences: submits them, hands out their replies, submits them again after a restart.

Invariant: exactly one terminal reply ends an attempt, and ``submit`` does not exit before it has arrived. A caller may
therefore release a lease once ``submit`` has exited. (If a sequence is failed because its engine kept dying, the
terminal reply is made here; no process can still read its images.)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

from mmserve.httpserver.engine.live_sequence import LiveSequence
from mmserve.messages.reply import ServerPhase, TokenReply
from mmserve.messages.request import SUSPECT_FROM, AbortRequest, GenerateRequest, RequestMessage
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.runtime.uncancelled import to_completion

ABORT_TIMEOUT_S = 15.0
"""Longest wait for the terminal reply to an abort. Only a dead engine needs longer."""

MAX_RESENDS = 4
"""A request is sent again this often without a token in between: once less than the supervisor restarts a group within
a minute. Deaths of visual servers are not counted: they find out themselves which image is the cause."""

logger = logging.getLogger(__name__)


class Link(Protocol):
    """Implemented by links.EngineLinks."""

    def send(self, message: RequestMessage) -> None: ...


class Dispatcher:
    """One per worker; used from its event loop only."""

    def __init__(
        self, worker: int, link: Link, metrics: MetricsClient, *, abort_timeout_s: float = ABORT_TIMEOUT_S
    ) -> None:
        self._worker = worker
        self._link = link
        self._metrics = metrics
        self._abort_timeout_s = abort_timeout_s
        self._live: dict[str, LiveSequence] = {}
        self._phase: ServerPhase | None = None

    @property
    def num_live(self) -> int:
        return len(self._live)

    def is_live(self, sequence_id: str) -> bool:
        """True while the sequence is in ``submit``: the engine has it, or is about to get it."""
        return sequence_id in self._live

    @asynccontextmanager
    async def submit(self, request: GenerateRequest) -> AsyncIterator[AsyncIterator[TokenReply]]:
        """Send a sequence; iterate its replies, the last of which has ``finish``. Iterating may raise MediaLost.

        Leaving the context earlier aborts the sequence. The exit waits for the terminal reply, at most the abort
        timeout, even if it is cancelled.
        """
        sequence = LiveSequence(request)
        self._link.send(request)
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
            self._link.send(AbortRequest(id=reply.id, reply_to=self._worker, attempt=reply.attempt))
        elif sequence is not None and reply.attempt == sequence.request.attempt and not sequence.ended.is_set():
            sequence.add_reply(reply)

    def lose(self, reply: TokenReply) -> None:
        """``deliver`` has failed. Send the reply's sequence again, so that its client misses no token."""
        sequence = self._live.get(reply.id)
        if sequence is None or reply.attempt != sequence.request.attempt or sequence.ended.is_set():
            return
        if not (sequence.aborted or sequence.media_lost):
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

    def _on_restart(self, sequence: LiveSequence, before: ServerPhase, phase: ServerPhase) -> None:
        if sequence.aborted:
            if phase.engine_epoch > before.engine_epoch:
                sequence.ended.set()  # a new engine runs no old sequence
        elif sequence.media_lost:
            pass  # its images are about to be leased again, and are sent with the attempt after this one
        elif phase.cache_epoch > before.cache_epoch and sequence.request.spans and not sequence.answered:
            sequence.lose_media()
        elif phase.engine_epoch > before.engine_epoch:
            self._resend_or_fail(sequence)
        elif sequence.needs_encoder and _encoder_restarted(before, phase):
            self._resend(sequence)

    def _resend_or_fail(self, sequence: LiveSequence) -> None:
        """Send the next attempt, or fail a sequence that killed the engine or was sent again MAX_RESENDS times."""
        if sequence.is_computed or not sequence.num_deaths:
            sequence.num_deaths += 1
        if sequence.num_deaths > SUSPECT_FROM or sequence.num_resent == MAX_RESENDS:
            self._link.send(_abort_request(sequence.request))
            sequence.fail(
                f"what computes this request was started again {sequence.num_resent + 1} times before it answered"
            )
            return
        sequence.num_resent += 1
        self._resend(sequence)

    def _resend(self, sequence: LiveSequence) -> None:
        sequence.request = sequence.next_attempt()
        sequence.answered = sequence.is_computed = False
        self._link.send(sequence.request)
        self._metrics.add("requests_resent", 1)

    async def _abort(self, sequence: LiveSequence) -> None:
        sequence.aborted = True
        self._link.send(_abort_request(sequence.request))
        try:
            await asyncio.wait_for(sequence.ended.wait(), self._abort_timeout_s)
        except TimeoutError:
            logger.warning(
                "no terminal reply to the abort of %s within %g s", sequence.request.id, self._abort_timeout_s
            )


def _encoder_restarted(before: ServerPhase, phase: ServerPhase) -> bool:
    """True if a visual server has restarted between the two phases. The router alone knows which one has an image."""
    return any(phase.visual_epoch(index) > before.visual_epoch(index) for index in range(len(phase.visual_epochs)))


def _abort_request(request: GenerateRequest) -> AbortRequest:
    return AbortRequest(id=request.id, reply_to=request.reply_to, attempt=request.attempt)
