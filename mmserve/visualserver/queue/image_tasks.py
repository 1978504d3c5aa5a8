"""Images of the queue: needed, waiting, or in a batch. Data alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from mmserve.visualserver.images import Image
from mmserve.visualserver.queue.pending_request import PendingRequest


@dataclass(frozen=True)
class ImageBatch:
    """Distinct images to decode and encode together."""

    images: tuple[Image, ...]
    first_started: tuple[PendingRequest, ...]
    """Requests whose first images are in this batch."""
    others_waiting: bool
    """True if a request without a permit has images that are in no batch yet."""


@dataclass(eq=False)
class ImageTask:
    """An image that is needed."""

    image: Image
    decoded_nbytes: int
    waiters: dict[str, PendingRequest] = field(default_factory=dict)
    """Request id -> request that needs the image."""
    in_flight: bool = False
