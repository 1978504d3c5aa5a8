"""Which images to encode next, across requests, and which requests that completes. Pure: no clocks, no torch.

An image that several requests wait for is one piece of work. Requests are served first come first served, and none of
their images begins before their turn at decoding has come.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.request import AbortReason, AbortRequest, EngineInbound, GenerateRequest
from mmserve.visualserver.permits import PermitHolders


@dataclass(frozen=True)
class Image:
    """One piece of work; where its bytes are and where its rows go."""

    item_id: int
    data: Handle
    embed: Handle


@dataclass(frozen=True)
class Outcome:
    """How an image ended: encoded, or why every request that needs it ends."""

    state: Literal["encoded"] | AbortReason
    message: str = ""


ENCODED = Outcome("encoded")


@dataclass
class PendingRequest:
    """A request that waits for images; ``missing``: item id -> place among the request's images."""

    request: GenerateRequest
    received_s: float
    missing: dict[int, int] = field(default_factory=dict)
    begun: bool = False
    has_turn: bool = False

    @property
    def turn(self) -> str:
        """Name of its turn: a later attempt at the same request has another."""
        return f"{self.request.id}/{self.request.attempt}"


@dataclass(frozen=True)
class Claim:
    """A request that has images to be decoded, of about so many bytes of pixels, and no turn yet."""

    held: PendingRequest
    nbytes: int


@dataclass
class _Work:
    image: Image
    decoded_nbytes: int
    waiting: dict[str, PendingRequest] = field(default_factory=dict)
    in_flight: bool = False


@dataclass(frozen=True)
class Batch:
    """Distinct images to decode and encode together, and requests whose first image this brings. ``others_wait``: for
    their turn, with images that nobody has begun."""

    images: tuple[Image, ...]
    begun: tuple[PendingRequest, ...]
    others_wait: bool


class BatchQueue:
    """``max_images`` in one batch; ``max_held`` clients' requests wait, each with all its choices, more are refused."""

    def __init__(self, max_images: int, max_held: int = sys.maxsize) -> None:
        self._max_images = max_images
        self._max_held = max_held
        self.turns = PermitHolders()
        self.following: PendingRequest | None = None
        """Knows that its turn comes when the one that is on is over."""
        self._held: dict[str, PendingRequest] = {}
        self._num_choices: Counter[str] = Counter()
        """Client's request -> how many of its choices are held."""
        self._work: dict[int, _Work] = {}

    def __len__(self) -> int:
        """Clients' requests that are held."""
        return len(self._num_choices)

    def add(self, request: GenerateRequest, now_s: float) -> list[EngineInbound]:
        """Hold the request until its images are encoded; what to send on at once: itself, if nothing is missing, or
        that it ends, if too many wait already.

        Of two attempts at one id the later counts; the same one twice counts once.
        """
        if (known := self._held.get(request.id)) is not None:
            if known.request.attempt >= request.attempt:
                return []
            self.drop(request.id)
        held = PendingRequest(request, now_s)
        for span in request.spans:
            if span.data is not None and span.item_id not in held.missing:
                held.missing[span.item_id] = span.media_index
                self._work_for(span, span.data).waiting[request.id] = held
        if not held.missing:
            return [request]
        self._held[request.id] = held
        self._num_choices[request.client_request] += 1
        if len(self) > self._max_held:
            return [self.give_up(held, "queue_full", f"{self._max_held} requests wait for their images already")]
        return []

    def drop(self, request_id: str) -> None:
        """Forget the request, and images that nobody else waits for."""
        if request_id not in self._held:
            return
        held = self._let_go(request_id)
        self.turns.no_more(held.turn)
        if held is self.following:
            self.following = None
            self.turns.give_up(held.turn)
        for item_id in held.missing:
            work = self._work[item_id]
            del work.waiting[request_id]
            if not work.waiting and not work.in_flight:
                del self._work[item_id]

    def give_up(self, held: PendingRequest, reason: AbortReason, message: str) -> AbortRequest:
        """Forget a request whose images do not get their turn; what the router is told."""
        self.drop(held.request.id)
        return _abort(held.request, reason, message, None)

    def claims(self) -> list[Claim]:
        """The oldest requests that have images which nobody is encoding, and no turn; some of them.

        No image is claimed twice: of those that wait for one the first claims it, with all others that it needs. The
        next claims what is idle still when the first has begun, or all of its own when the first was dropped.
        """
        claimants = (held for held in self._held.values() if held.has_turn or held is self.following)
        claimed = {item_id for held in claimants for item_id in held.missing}
        claims: list[Claim] = []
        for held in self._held.values():
            idle = self._idle(held)
            item_ids = {work.image.item_id for work in idle}
            if idle and claimed.isdisjoint(item_ids):
                claims.append(Claim(held, sum(work.decoded_nbytes for work in idle)))
                claimed |= item_ids
            if len(claims) == self._max_images:
                break
        return claims

    def wanted(self, images: Sequence[Image]) -> bool:
        """Does any request still wait for any of them?"""
        return any(self._work[image.item_id].waiting for image in images)

    def withdraw(self, images: Sequence[Image]) -> None:
        """Nobody wants any of them, and nobody is going to decode them."""
        for image in images:
            del self._work[image.item_id]
        self.turns.taken(item_ids(images))

    def holds(self, held: PendingRequest) -> bool:
        """Is it this attempt that is waiting?"""
        return self._held.get(held.request.id) is held

    def begin(self, held: PendingRequest) -> None:
        """Its turn has come. One that was dropped meanwhile ends it at once."""
        held.has_turn = True
        self.turns.begin(held.turn)
        if not self.holds(held):
            self.turns.no_more(held.turn)

    def follow(self, held: PendingRequest) -> None:
        """Its turn comes when the one that is on is over. One that was dropped meanwhile gives it up at once."""
        if self.holds(held):
            self.following = held
        else:
            self.turns.give_up(held.turn)

    def next_batch(self, *, ahead: bool = False) -> Batch | None:
        """Images, which nobody is encoding, of the oldest requests that have a turn; in flight until ``finish``.

        ``ahead``: of who follows alone, to be decoded when what is being decoded is with the encoder.
        """
        if self.following is not None and self.turns.none_to_begin:
            held, self.following = self.following, None
            self.begin(held)
        elif ahead:
            return None
        chosen: list[_Work] = []
        begun: list[PendingRequest] = []
        for held in [held for held in self._held.values() if held.has_turn]:
            idle = self._idle(held)
            mine = idle[: self._max_images - len(chosen)]
            if mine:
                self._decode(held, mine)
                chosen += mine
                begun += [] if held.begun else [held]
                held.begun = True
            if len(mine) == len(idle):
                self.turns.no_more(held.turn)
        if not chosen:
            return None
        others_wait = any(self._idle(held) for held in self._held.values() if not held.has_turn)
        return Batch(tuple(work.image for work in chosen), tuple(begun), others_wait)

    def _decode(self, held: PendingRequest, works: Sequence[_Work]) -> None:
        for work in works:
            work.in_flight = True
        self.turns.decode(held.turn, (work.image.item_id for work in works))

    def _idle(self, held: PendingRequest) -> list[_Work]:
        return [work for item_id in held.missing if not (work := self._work[item_id]).in_flight]

    def finish(self, outcomes: Mapping[int, Outcome]) -> list[EngineInbound]:
        """Item id -> how it ended. Returns what goes to the router: complete requests, aborts of failed ones."""
        outbound: list[EngineInbound] = []
        for item_id, outcome in outcomes.items():
            work = self._work.pop(item_id)
            for held in work.waiting.values():
                media_index = held.missing.pop(item_id)
                if outcome.state != "encoded":
                    outbound.append(_abort(held.request, outcome.state, outcome.message, media_index))
                    self.drop(held.request.id)
                elif not held.missing:
                    outbound.append(self._let_go(held.request.id).request)
        return outbound

    def _let_go(self, request_id: str) -> PendingRequest:
        held = self._held.pop(request_id)
        client_request = held.request.client_request
        self._num_choices[client_request] -= 1
        if not self._num_choices[client_request]:
            del self._num_choices[client_request]
        return held

    def _work_for(self, span: MediaSpan, data: Handle) -> _Work:
        image = Image(span.item_id, data, span.embed)
        return self._work.setdefault(span.item_id, _Work(image, span.decoded_nbytes))


def _abort(request: GenerateRequest, reason: AbortReason, message: str, media_index: int | None) -> AbortRequest:
    return AbortRequest(
        id=request.id,
        reply_to=request.reply_to,
        reason=reason,
        message=message,
        media_index=media_index,
        attempt=request.attempt,
    )


def item_ids(images: Sequence[Image]) -> tuple[int, ...]:
    """Names of the images, in order."""
    return tuple(image.item_id for image in images)
