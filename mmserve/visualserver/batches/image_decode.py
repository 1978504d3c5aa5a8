"""Decodes the images of a batch from the arena to views, in a thread pool. Skips images that are encoded already.

Compressed bytes are read in the arena, without a copy; the handle's generation is checked again after decoding.
Pillow and numpy release the GIL, so decoding runs in parallel with the vision tower and the event loop.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from mmserve.cache_server.client import MediaCacheClient
from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.processors.interface import Views
from mmserve.runtime.errors import MediaError, MmserveError, Shortage, Unavailable
from mmserve.runtime.shortage import shortage_of
from mmserve.visualserver.batches.guarded_decode import GuardedDecoder
from mmserve.visualserver.images import ENCODED, INTERNAL, LOST, Image, Outcome, item_ids

logger = logging.getLogger(__name__)


@dataclass
class DecodedBatch:
    """The images of a batch after decoding."""

    images: list[Image] = field(default_factory=list)
    """Images to encode."""
    views: list[Views] = field(default_factory=list)
    """Of each image; none once the encoder has taken them."""
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    """Item id -> outcome, for images that are not to be encoded."""
    seconds: list[float] = field(default_factory=list)
    """Decoding time of each image that was decoded."""


class ImageDecoder:
    """Decodes one batch at a time. Not thread-safe; blocks on RPCs, so never call it on the event loop."""

    def __init__(self, pictures: GuardedDecoder, arena: Arena, cache: MediaCacheClient, pool: Executor) -> None:
        self._pictures = pictures
        self._arena = arena
        self._cache = cache
        self._pool = pool

    @property
    def is_overdue(self) -> bool:
        """True if the decoding of an image takes so long that it is stuck."""
        return self._pictures.is_overdue

    def close(self) -> None:
        """End the child process that decodes suspects. A thread that waits for it gets an error."""
        self._pictures.close()

    def decode(self, images: Sequence[Image]) -> DecodedBatch:
        """Ask the cache server once which images need encoding, then decode those in parallel.

        An image that fails gets an outcome and does not affect the others. Failed items are reported to the cache
        server here; the caller must report the items that it encodes.
        """
        decoded = DecodedBatch()
        try:
            self._decode(self._not_encoded(images, decoded), decoded)
            self._report_failures(decoded)
        except Shortage as error:
            return DecodedBatch(outcomes=dict.fromkeys(item_ids(images), Outcome("shortage", error.message)))
        except Unavailable:
            return DecodedBatch(outcomes=dict.fromkeys(item_ids(images), LOST))
        return decoded

    def _not_encoded(self, images: Sequence[Image], decoded: DecodedBatch) -> list[Image]:
        states = self._cache.get_items_embed(item_ids(images))
        for image, state in zip(images, states, strict=True):
            if state != "pending":
                decoded.outcomes[image.item_id] = ENCODED if state == "ready" else LOST
        return [image for image, state in zip(images, states, strict=True) if state == "pending"]

    def _decode(self, images: Sequence[Image], decoded: DecodedBatch) -> None:
        # A single image is decoded in this thread: on busy cores, waking another thread costs more than it gains.
        results = self._pool.map(self._views, images) if len(images) > 1 else map(self._views, images)
        for image, (result, seconds) in zip(images, results, strict=True):
            decoded.seconds.append(seconds)
            if isinstance(result, Outcome):
                decoded.outcomes[image.item_id] = result
            else:
                decoded.images.append(image)
                decoded.views.append(result)

    def _views(self, image: Image) -> tuple[Views | Outcome, float]:
        started_s = time.monotonic()
        try:
            result = self._process(image, self._arena.readable(image.data))
            self._arena.check(image.data)
        except StaleHandle:
            result = LOST
        return result, time.monotonic() - started_s

    def _process(self, image: Image, data: memoryview) -> Views | Outcome:
        try:
            return self._pictures.views(image.item_id, data, image.processing)
        except MediaError as error:
            return Outcome("media_error", error.message)
        except MmserveError as error:
            return Outcome("internal_error", error.message)
        except Exception as error:  # the boundary of one image: the others of the batch must not fail with it
            if (short := shortage_of(error)) is not None:
                logger.warning("image %d could not be decoded: %s", image.item_id, short.message)
                return Outcome("shortage", short.message)
            logger.exception("image %d could not be decoded", image.item_id)
            return INTERNAL

    def _report_failures(self, decoded: DecodedBatch) -> None:
        """Report failures; an image that another visual server encoded meanwhile counts as encoded."""
        failed = [item_id for item_id, outcome in decoded.outcomes.items() if outcome is not ENCODED]
        states = self._cache.set_items_embed(failed, [False] * len(failed))
        decoded.outcomes.update((item_id, ENCODED) for item_id, s in zip(failed, states, strict=True) if s == "ready")
