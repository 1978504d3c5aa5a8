"""Decoded batches that wait for room in the encoder, and how many images it has. Pure."""

from __future__ import annotations

from collections import deque

from mmserve.visualserver.batches.image_decode import DecodedBatch
from mmserve.visualserver.queue.image_tasks import ImageBatch


class EncoderRoom:
    """The encoder has at most ``max_images``, waiting and being encoded; about as many more wait here.

    Batches of single images that arrive one after another while the encoder is busy enter it together.
    """

    def __init__(self, max_images: int) -> None:
        self._max_images = max_images
        self._free = max_images
        self._waiting: deque[tuple[DecodedBatch, ImageBatch]] = deque()

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def to_decode(self) -> int:
        """Images that may be decoded beside those that wait here."""
        return self._max_images - sum(len(decoded.images) for decoded, _ in self._waiting)

    def add(self, decoded: DecodedBatch, batch: ImageBatch) -> None:
        """``decoded``, which is ``batch`` or the part of it that has to be encoded, waits for room."""
        self._waiting.append((decoded, batch))

    def take(self) -> tuple[DecodedBatch, ImageBatch] | None:
        """The batch that has waited longest, if the encoder has room for all of it; it is the encoder's from now on."""
        if not self._waiting or len(self._waiting[0][0].images) > self._free:
            return None
        decoded, batch = self._waiting.popleft()
        self._free -= len(decoded.images)
        return decoded, batch

    def release(self, num_images: int) -> None:
        """So many images are encoded."""
        self._free += num_images
