"""Which images to encode next, across requests, and which requests that completes. Pure: no clocks, no torch.

An image that several requests wait for is one piece of work. Requests are served first come first served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from mmserve.messages.media import Handle, MediaSpan
from mmserve.messages.request import AbortReason, AbortRequest, EngineInbound, GenerateRequest


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
class Held:
    """A request that waits for images; ``missing``: item id -> place among the request's images."""

    request: GenerateRequest
    received_s: float
    missing: dict[int, int] = field(default_factory=dict)
    begun: bool = False


@dataclass
class _Work:
    image: Image
    waiting: dict[str, Held] = field(default_factory=dict)
    in_flight: bool = False


@dataclass(frozen=True)
class Batch:
    """Distinct images to decode and encode together; requests whose first image this brings, and all it works for."""

    images: tuple[Image, ...]
    begun: tuple[Held, ...]
    num_requests: int


class Batcher:
    """``max_images`` in one batch, of at most ``max_requests`` requests (0: any number)."""

    def __init__(self, max_images: int, max_requests: int = 0) -> None:
        self._max_images = max_images
        self._max_requests = max_requests
        self._held: dict[str, Held] = {}
        self._work: dict[int, _Work] = {}

    def __len__(self) -> int:
        """Requests held."""
        return len(self._held)

    @property
    def has_work(self) -> bool:
        """Is there an image that nobody is encoding?"""
        return any(not work.in_flight for work in self._work.values())

    def add(self, request: GenerateRequest, now_s: float) -> list[EngineInbound]:
        """Hold the request until its images are encoded; what to send on at once (itself, if nothing is missing).

        Of two attempts at one id the later counts; the same one twice counts once.
        """
        if (known := self._held.get(request.id)) is not None:
            if known.request.attempt >= request.attempt:
                return []
            self.drop(request.id)
        held = Held(request, now_s)
        for span in request.spans:
            if span.data is not None and span.item_id not in held.missing:
                held.missing[span.item_id] = span.media_index
                self._work_for(span, span.data).waiting[request.id] = held
        if not held.missing:
            return [request]
        self._held[request.id] = held
        return []

    def drop(self, request_id: str) -> None:
        """Forget the request, and images that nobody else waits for."""
        held = self._held.pop(request_id, None)
        for item_id in held.missing if held else ():
            work = self._work[item_id]
            del work.waiting[request_id]
            if not work.waiting and not work.in_flight:
                del self._work[item_id]

    def next_batch(self) -> Batch | None:
        """The oldest requests' images that nobody is encoding; they are in flight until ``finish``."""
        chosen: list[_Work] = []
        served: list[Held] = []
        for held in self._held.values():
            mine = [work for item_id in held.missing if not (work := self._work[item_id]).in_flight]
            mine = mine[: self._max_images - len(chosen)]
            if not mine:
                continue
            served.append(held)
            for work in mine:
                work.in_flight = True
            chosen += mine
            if len(chosen) == self._max_images or len(served) == self._max_requests:
                break
        if not chosen:
            return None
        begun = tuple(held for held in served if not held.begun)
        for held in begun:
            held.begun = True
        return Batch(tuple(work.image for work in chosen), begun, len(served))

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
                    outbound.append(self._held.pop(held.request.id).request)
        return outbound

    def _work_for(self, span: MediaSpan, data: Handle) -> _Work:
        image = Image(span.item_id, data, span.embed)
        return self._work.setdefault(span.item_id, _Work(image))


def _abort(request: GenerateRequest, reason: AbortReason, message: str, media_index: int) -> AbortRequest:
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
