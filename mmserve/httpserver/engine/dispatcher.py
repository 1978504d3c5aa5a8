"""The table of live sequences: sends each to the engine, hands its replies back, sends it again after a restart.

Knows ids, attempts and roads; knows no text, no lease and no client. Exactly one terminal reply ends an attempt,
and ``submit`` does not return before it came, so whoever encloses ``submit`` in a lease may release it after. (Of a
request that is given up it is our own: what computed it has died.)
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

import msgspec

from mmserve.httpserver.engine.links import Road
from mmserve.messages.reply import ServerPhase, TokenReply
from mmserve.messages.request import AbortRequest, GenerateRequest
from mmserve.metrics.client import MetricsClient
from mmserve.runtime.uncancelled import to_completion

ABORT_WAIT_S = 15.0
"""How long an abort's terminal reply is awaited; only a dead engine needs more."""

MAX_RESENDS = 3
"""A request is sent again so often without a token in between. Each time something died: perhaps of it."""

logger = logging.getLogger(__name__)


class Ways(Protocol):
    """What the dispatcher needs of ``roads.EngineLinks``."""

    def choose(self, request: GenerateRequest) -> Road: ...
    def send(self, road: Road, message: GenerateRequest | AbortRequest) -> None: ...


class MediaLost(Exception):
    """An image's place in the arena is gone. Lease again and submit ``request`` with new spans, one attempt on."""

    def __init__(self, attempt: int, output_ids: bytes) -> None:
        super().__init__(f"media lost in attempt {attempt}")
        self.next_attempt = attempt + 1
        self.output_ids = output_ids


class _Live:
    """One sequence between submit and its terminal reply."""

    def __init__(self, request: GenerateRequest, road: Road) -> None:
        self.request = request
        self.road = road
        self.output = array("q", request.output_ids)
        self.replies: asyncio.Queue[TokenReply | MediaLost] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.answered = False
        """Whether the current attempt has reached the router, as a reply shows."""
        self.num_resent = 0
        """Since its last token."""
        self.aborted = False

    def __aiter__(self) -> AsyncIterator[TokenReply]:
        return self

    async def __anext__(self) -> TokenReply:
        if self.ended.is_set() and self.replies.empty():
            raise StopAsyncIteration
        reply = await self.replies.get()
        if isinstance(reply, MediaLost):
            raise reply
        return reply

    def take(self, reply: TokenReply) -> None:
        self.answered = True
        if reply.finish is not None:
            self.ended.set()
        if reply.finish == "media_lost":
            self.lose_media()
        else:
            if reply.token_ids:
                self.output.extend(reply.token_ids)
                self.num_resent = 0
            self.replies.put_nowait(reply)

    def lose_media(self) -> None:
        self.replies.put_nowait(MediaLost(self.request.attempt, self.output.tobytes()))

    def give_up(self, message: str) -> None:
        self.take(TokenReply(id=self.request.id, attempt=self.request.attempt, finish="error", message=message))

    def next_attempt(self) -> GenerateRequest:
        return msgspec.structs.replace(self.request, attempt=self.request.attempt + 1, output_ids=self.output.tobytes())


class Dispatcher:
    """One per worker; used from its event loop only."""

    def __init__(self, worker: int, roads: Ways, metrics: MetricsClient, *, abort_wait_s: float = ABORT_WAIT_S) -> None:
        self._worker = worker
        self._roads = roads
        self._metrics = metrics
        self._abort_wait_s = abort_wait_s
        self._live: dict[str, _Live] = {}
        self._phase: ServerPhase | None = None

    @property
    def num_live(self) -> int:
        return len(self._live)

    @asynccontextmanager
    async def submit(self, request: GenerateRequest) -> AsyncIterator[AsyncIterator[TokenReply]]:
        """Send a sequence; iterate its replies, the last one carries ``finish``. Iterating may raise MediaLost.

        Leaving early aborts. Either way the exit waits, shielded and bounded, until the engine let go of the sequence.
        """
        live = _Live(request, self._roads.choose(request))
        self._roads.send(live.road, request)
        self._live[request.id] = live  # not before: one that cannot be sent leaves nothing behind
        try:
            yield live
        finally:
            try:
                if not live.ended.is_set():
                    await to_completion(self._abort(live))
            finally:
                del self._live[request.id]

    def deliver(self, reply: TokenReply) -> None:
        """Hand a reply to its sequence; replies of older attempts are dropped. A sequence that nobody here waits for
        belonged to this worker's killed predecessor: it is aborted."""
        live = self._live.get(reply.id)
        if live is None and reply.finish is None:
            self._roads.send(None, AbortRequest(id=reply.id, reply_to=self._worker, attempt=reply.attempt))
        elif live is not None and reply.attempt == live.request.attempt and not live.ended.is_set():
            live.take(reply)

    def follow(self, phase: ServerPhase) -> None:
        """Act on raised epochs: what a restarted part had forgotten is sent again."""
        before, self._phase = self._phase, phase
        if before is None:
            return
        for live in [live for live in self._live.values() if not live.ended.is_set()]:
            if live.aborted:
                self._abort_again(live, before, phase)
            elif phase.cache_epoch > before.cache_epoch and live.request.spans and not live.answered:
                live.lose_media()
            elif phase.engine_epoch > before.engine_epoch or (
                phase.visual_epoch > before.visual_epoch and live.road is not None and not live.answered
            ):
                self._send_again(live)

    def _send_again(self, live: _Live) -> None:
        if live.num_resent == MAX_RESENDS:
            for road in {live.road, None}:  # it may still lie on its way, or have got past what died
                self._roads.send(road, _abort_request(live.request))
            live.give_up(f"what computes this request was started again {MAX_RESENDS + 1} times before it answered")
            return
        live.num_resent += 1
        live.request = live.next_attempt()
        live.answered = False
        live.road = self._roads.choose(live.request)
        self._roads.send(live.road, live.request)
        self._metrics.add("requests_resent", 1)

    def _abort_again(self, live: _Live, before: ServerPhase, phase: ServerPhase) -> None:
        """A new engine runs nothing of old; a new visual server may have lost the abort, the router answers any."""
        if phase.engine_epoch > before.engine_epoch:
            live.ended.set()
        elif phase.visual_epoch > before.visual_epoch:
            self._roads.send(None, _abort_request(live.request))

    async def _abort(self, live: _Live) -> None:
        live.aborted = True
        self._roads.send(live.road, _abort_request(live.request))
        try:
            await asyncio.wait_for(live.ended.wait(), self._abort_wait_s)
        except TimeoutError:
            logger.warning("no terminal reply to the abort of %s within %g s", live.request.id, self._abort_wait_s)


def _abort_request(request: GenerateRequest) -> AbortRequest:
    return AbortRequest(id=request.id, reply_to=request.reply_to, attempt=request.attempt)
