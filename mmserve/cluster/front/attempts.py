"""Sends one request to replica after replica until it is answered.

A replica that cannot be reached, ends its connection, or refuses (429, 503) is left for another one. A stream that has
begun goes on there from the tokens so far, so the client sees a pause and then the rest of the same text. What a
replica has lost takes turns, and waits for a while where the others refuse: they have just got more to do. One that
would compute another text (421) is not asked again.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import msgspec
from starlette.types import Send

from mmserve.cluster.front.metrics import FrontMetrics
from mmserve.cluster.front.replicas import Placement
from mmserve.cluster.front.request.forwarded import ForwardedRequest
from mmserve.cluster.front.request.headers import Headers, is_stream, kept, said_of
from mmserve.cluster.front.request.progress import Progress
from mmserve.cluster.front.turns import Turn, Turns
from mmserve.cluster.front.upstream import ReplicaLost, Upstream, UpstreamAnswer
from mmserve.messages.relay import RELAY_HEADER, Relay, sealed
from mmserve.runtime.errors import Misdirected, MmserveError, Unavailable

_MAX_LOST = 3
"""Replicas that may be lost without a token in between: a request that kills its replica must not kill them all."""
_AGAIN_S = 0.5
"""Until a replica that has failed is asked again because there is no other."""
_MAX_RESUMES = 32
"""Requests that go on elsewhere at once, each until its next token has come."""
_LONGEST_TURN_S = 5.0
"""A replica that has not answered by then does so at its own pace."""
_UNAVAILABLE, _MISDIRECTED = 503, Misdirected.status
_REFUSALS = (429, _UNAVAILABLE, _MISDIRECTED)
_NOT_HERE = 404
_LOST_RETRY_AFTER_S = 1.0


@dataclass
class Attempts:
    """``secret``: shared with the replicas. ``patience_s``: how long a request that a replica has lost is offered to
    others that refuse it or cannot be reached."""

    replicas: Placement
    metrics: FrontMetrics
    secret: bytes
    patience_s: float
    caches_by_key: bool = False
    """As the replica says that answered last: each API key has caches of its own there."""

    def __post_init__(self) -> None:
        self.turns = Turns(_MAX_RESUMES, _LONGEST_TURN_S, self.metrics)

    async def answer(self, request: ForwardedRequest, send: Send) -> None:
        """Send the answer of the first replica that has one. Raises MmserveError if nothing was sent yet."""
        await _Attempt(self, request, send).run()


class _Attempt:
    def __init__(self, shared: Attempts, request: ForwardedRequest, send: Send) -> None:
        self._shared = shared
        self._request = request
        self._send = send
        self._failed: list[str] = []
        self._unequal: set[str] = set()
        """Replicas that would compute another text than the one that has begun the stream."""
        self._refusal: tuple[int, Headers, bytes] | None = None
        self._refused_with = 0
        """By the last replica that did."""
        self._unheard = False
        """A replica has not answered that may have what the others do not have."""
        self._progress = Progress()
        self._numbers = ""
        """Digest of the replica that has begun the stream."""
        self._started = False
        self._lost = 0
        """Replicas, since the last token."""
        self._until_s: float | None = None
        """How long others are asked again; None: no replica has lost this request."""
        self._turn: Turn | None = None

    async def run(self) -> None:
        try:
            await self._run()
        except Unavailable as error:
            if not (self._started and self._request.generates):
                raise
            await self._end_stream(error)

    async def _run(self) -> None:
        while self._lost < _MAX_LOST:
            if self._until_s is None:
                ended = await self._once()
            else:
                with await self._shared.turns.take() as self._turn:
                    ended = await self._once()
            if ended is not None:
                return None if ended else await self._give_up()
        await self._give_up()

    async def _once(self) -> bool | None:
        """One attempt. True: the client has its answer; False: it cannot have one; None: try again."""
        replicas, before = self._shared.replicas, len(self._progress.sampled)
        try:
            excluded = [*self._failed, *self._unequal]
            async with replicas.reserved(self._request.want, excluded) as (replica, upstream):
                if replica in self._failed:  # there is no other
                    if self._refusal is not None and not self._is_patient():
                        return False
                    await asyncio.sleep(_AGAIN_S)
                    if self._is_patient():
                        self._failed = []  # all are asked again
                if replica not in self._unequal and await self._try(upstream):
                    replicas.answered(replica)
                    return True
        except ReplicaLost as error:
            replicas.failed(replica)
            self._unheard = self._request.names_stored
            if error.sent and self._request.may_act:
                self._refusal = None
                return False  # nobody knows whether the replica has done it
            if self._started and not self._request.generates:
                return False  # the client has a part of an answer that cannot go on elsewhere
            if len(self._progress.sampled) > before:
                self._failed, self._lost, self._until_s = [], 0, None
            if error.sent:
                self._until_s = self._until_s or time.monotonic() + self._shared.patience_s
            self._lost += error.sent or (replica in self._failed and not self._is_patient())
        else:
            if replica in self._unequal:  # the others have failed, or there are none
                return await self._wait_for_an_equal()
            if self._refused_with == _MISDIRECTED:
                self._unequal.add(replica)
                return None
            if self._refused_with == _UNAVAILABLE:  # it ends, or starts, and takes nothing now
                replicas.failed(replica)
        if replica not in self._failed:
            self._failed.append(replica)
        return None

    async def _wait_for_an_equal(self) -> bool | None:
        """See ``_once``. Until one that has failed, or that starts, may answer."""
        self._failed = []
        if not self._is_patient() or not await self._shared.replicas.has_others(self._unequal):
            return False
        await asyncio.sleep(_AGAIN_S)
        return None

    def _is_patient(self) -> bool:
        return self._until_s is not None and time.monotonic() < self._until_s

    async def _try(self, upstream: Upstream) -> bool:
        """False if the replica refuses."""
        request = self._request
        headers, tail = self._relay_header()
        sent_headers = [*request.headers, *headers]
        answer = await upstream.send(
            request.method, request.target, sent_headers, [request.body, tail], may_move=not request.may_act
        )
        try:
            if answer.status in _REFUSALS or (answer.status == _NOT_HERE and request.names_stored):
                self._refused_with = answer.status
                refusal = answer.status, answer.headers, await self._whole(answer)
                if self._refusal is None or answer.status != _NOT_HERE:  # one that was busy may have it
                    self._refusal = refusal
                return False
            self._learn(answer.headers)
            if answer.status == 200 and request.generates and is_stream(answer.headers):
                await self._pass_stream(answer)
            elif request.repeats or self._started:
                await self._pass_whole(answer)
            else:
                await self._pass_parts(answer)
            return True
        finally:
            answer.close()

    def _relay_header(self) -> tuple[list[tuple[bytes, bytes]], bytes]:
        request, progress = self._request, self._progress
        if not request.generates:
            return [], b""
        progress.restart()
        relay = Relay(
            request_id=request.request_id,
            created_s=request.created_s,
            body_nbytes=len(request.body),
            num_events=progress.num_events,
            pictures=request.want.places,
            blocks=request.want.blocks,
            text_nbytes=request.want.text_nbytes,
            numbers=self._numbers if progress.sampled else "",
        )
        tail = progress.sampled.tail()
        return [(RELAY_HEADER.encode(), sealed(relay, tail, self._shared.secret).encode())], tail

    def _learn(self, headers: Headers) -> None:
        """What the replica says of itself beside an answer that is made from the body alone."""
        if (said := said_of(headers)) is not None:
            self._shared.caches_by_key = said.caches_by_key
            if not self._progress.sampled:
                self._numbers = said.numbers

    async def _pass_stream(self, answer: UpstreamAnswer) -> None:
        """Send whole events as they come."""
        if self._started:
            self._shared.metrics.add("resumed", 1)
        await self._start(answer.status, answer.headers)
        async for part in answer.parts():
            try:
                shown = self._progress.take(part)
            except (ValueError, msgspec.DecodeError):
                raise ReplicaLost("its stream was damaged", sent=True) from None
            self._keep(self._progress.sampled.nbytes)
            if shown:
                await self._send({"type": "http.response.body", "body": shown, "more_body": True})
            if self._progress.given_up:
                raise ReplicaLost("it has given its stream up", sent=True)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _pass_whole(self, answer: UpstreamAnswer) -> None:
        """Send an answer once all of it has come, so that another replica can still give it."""
        content = await self._whole(answer)
        if self._started:  # a stream that another replica has begun cannot go on here
            return await self._end_stream(MmserveError(f"a replica answered with {answer.status}"))
        await self._start(answer.status, answer.headers)
        await self._send({"type": "http.response.body", "body": content, "more_body": False})

    async def _whole(self, answer: UpstreamAnswer) -> bytes:
        parts, nbytes = [], 0
        async for part in answer.parts():
            parts.append(part)
            nbytes += len(part)
            self._keep(nbytes)
        return b"".join(parts)

    async def _pass_parts(self, answer: UpstreamAnswer) -> None:
        """Send an answer as it comes. If it breaks off, so does the client's connection."""
        await self._start(answer.status, answer.headers)
        async for part in answer.parts():
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _keep(self, nbytes: int) -> None:
        """Of the answer; the body is kept anyway. What has come ends the turn."""
        self._request.kept.grow_to(len(self._request.body) + nbytes)
        if self._turn is not None:
            self._turn.end()

    async def _start(self, status: int, headers: Headers) -> None:
        if not self._started:
            self._started = True
            await self._send({"type": "http.response.start", "status": status, "headers": kept(headers)})

    async def _give_up(self) -> None:
        message = "no replica could answer this request"
        if self._unequal:
            message = "no replica that is left computes the same text: ask again for another answer"
        error = Unavailable(message, retry_after_s=_LOST_RETRY_AFTER_S)
        if self._started or self._refusal is None or (self._unheard and self._refusal[0] == _NOT_HERE):
            raise error
        status, headers, content = self._refusal
        await self._start(status, headers)
        await self._send({"type": "http.response.body", "body": content, "more_body": False})

    async def _end_stream(self, error: MmserveError) -> None:
        event = self._request.event_of(error, self._progress.num_events)
        await self._send({"type": "http.response.body", "body": event, "more_body": False})
