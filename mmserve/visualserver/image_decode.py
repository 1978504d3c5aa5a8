"""Images of a batch from the arena to pixels, in a thread pool. What is encoded already is left out.

Bytes are decoded where they lie; only afterwards it is asked whether they were still the image's, so nothing is copied.
Pillow and numpy release the GIL, so decoding runs beside the tower and the event loop. Knows no torch.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

import numpy as np

from mmserve.cache_server.client import MediaCacheClient
from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.processors.clip_pixels import Pixels
from mmserve.processors.registry import ImageProcessor
from mmserve.runtime.errors import MediaError, Unavailable
from mmserve.visualserver.batch_queue import ENCODED, Image, Outcome, item_ids

logger = logging.getLogger(__name__)

LOST = Outcome("media_lost", "the image is no longer in the media cache")
INTERNAL = Outcome("internal_error", "the image could not be encoded")


@dataclass
class DecodedBatch:
    """What became of a batch: pixels to encode, float32 [B, 3, H, W] until they are taken, and images that ended here.
    ``seconds``: decoding time of each."""

    images: list[Image] = field(default_factory=list)
    pixels: Pixels | None = None
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)


class ImageDecoder:
    """Called from one thread at a time, never the event loop's: it makes RPCs."""

    def __init__(self, processor: ImageProcessor, arena: Arena, cache: MediaCacheClient, pool: Executor) -> None:
        self._processor = processor
        self._arena = arena
        self._cache = cache
        self._pool = pool

    def decode(self, images: Sequence[Image]) -> DecodedBatch:
        """One RPC for the batch, then its images side by side. A failing image fails alone; never raises for one.

        Items that ended here without an embedding are reported to the cache server, all others must be.
        """
        decoded = DecodedBatch()
        try:
            self._decode(self._pending(images, decoded), decoded)
            self._report_failures(decoded)
        except Unavailable:
            return DecodedBatch(outcomes=dict.fromkeys(item_ids(images), LOST))
        return decoded

    def _pending(self, images: Sequence[Image], decoded: DecodedBatch) -> list[Image]:
        states = self._cache.get_items_embed(item_ids(images))
        for image, state in zip(images, states, strict=True):
            if state != "pending":
                decoded.outcomes[image.item_id] = ENCODED if state == "ready" else LOST
        return [image for image, state in zip(images, states, strict=True) if state == "pending"]

    def _decode(self, pending: Sequence[Image], decoded: DecodedBatch) -> None:
        """One image alone is decoded by this thread: waking another one takes longer than it seems on busy cores."""
        results = self._pool.map(self._pixels, pending) if len(pending) > 1 else map(self._pixels, pending)
        pixels: list[Pixels] = []
        for image, (result, seconds) in zip(pending, results, strict=True):
            decoded.seconds.append(seconds)
            if isinstance(result, Outcome):
                decoded.outcomes[image.item_id] = result
            else:
                decoded.images.append(image)
                pixels.append(result)
        if pixels:
            decoded.pixels = np.stack(pixels) if len(pixels) > 1 else pixels[0][None]

    def _pixels(self, image: Image) -> tuple[Pixels | Outcome, float]:
        started_s = time.monotonic()
        try:
            result = self._processed(image.item_id, self._arena.readable(image.data))
            self._arena.check(image.data)
        except StaleHandle:
            result = LOST
        return result, time.monotonic() - started_s

    def _processed(self, item_id: int, data: memoryview) -> Pixels | Outcome:
        try:
            return self._processor.pixels(data)
        except MediaError as error:
            return Outcome("media_error", error.message)
        except Exception:  # the boundary of one image: whatever went wrong, the others go on
            logger.exception("image %d could not be decoded", item_id)
            return INTERNAL

    def _report_failures(self, decoded: DecodedBatch) -> None:
        """Another visual server may have encoded an image, and its bytes gone, while this one was about to read."""
        failed = [item_id for item_id, outcome in decoded.outcomes.items() if outcome is not ENCODED]
        states = self._cache.set_items_embed(failed, [False] * len(failed))
        decoded.outcomes.update((item_id, ENCODED) for item_id, s in zip(failed, states, strict=True) if s == "ready")
