"""Pixels through the vision tower, rows into the arena, one word to the cache server for the batch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mmserve.cache_server.client import MediaCacheClient
from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.model_backend.platforms.device import is_lost
from mmserve.runtime.errors import Unavailable
from mmserve.visualserver.batch_queue import ENCODED, Image, Outcome
from mmserve.visualserver.image_decode import INTERNAL, LOST, DecodedBatch

Tower = Callable[[torch.Tensor], torch.Tensor]
"""float32 [B, 3, H, W] -> rows [B, num_image_tokens, hidden]."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Encoded:
    """How every image of the batch ended; ``seconds``: tower and copy together; bytes of rows put into the arena."""

    outcomes: dict[int, Outcome]
    seconds: float
    written_nbytes: int


@dataclass(frozen=True)
class EncoderBatch:
    """Images and their pixels, float32 [B, 3, H, W], which nobody else has any more."""

    images: Sequence[Image]
    pixels: torch.Tensor


class Encoder:
    """``encode`` computes and makes an RPC: from one thread at a time, never the event loop's."""

    def __init__(self, tower: Tower, dtype: torch.dtype, arena: Arena, cache: MediaCacheClient) -> None:
        self._tower = tower
        self._dtype = dtype
        self._arena = arena
        self._cache = cache

    def take(self, decoded: DecodedBatch) -> EncoderBatch:
        """The batch's pixels, taken over without a copy: ``decoded`` holds none any more."""
        pixels, decoded.pixels = decoded.pixels, None
        assert pixels is not None, "nothing was decoded, or it was taken before"
        return EncoderBatch(decoded.images, torch.from_numpy(pixels))

    def encode(self, taken: list[EncoderBatch]) -> Encoded:
        """All at once; after an error (out of memory, say) one by one, so that only what really fails does. Empties
        the list, so that no pixels outlive the call."""
        started_s = time.monotonic()
        images = [image for part in taken for image in part.images]
        pixels = taken[0].pixels if len(taken) == 1 else torch.cat([part.pixels for part in taken])
        taken.clear()
        try:
            outcomes = self._encode(images, pixels)
        except Exception as error:  # the boundary of one batch
            if is_lost(error):
                raise
            logger.exception("a batch of %d images failed, trying them one by one", len(images))
            outcomes = {}
            for index, image in enumerate(images):
                outcomes |= self._encode_alone(image, pixels[index : index + 1])
        written_nbytes = sum(image.embed.nbytes for image in images if outcomes[image.item_id] is ENCODED)
        return Encoded(self._register(outcomes), time.monotonic() - started_s, written_nbytes)

    def _encode_alone(self, image: Image, pixels: torch.Tensor) -> dict[int, Outcome]:
        try:
            return self._encode([image], pixels)
        except Exception as error:  # the boundary of one image
            if is_lost(error):
                raise
            logger.exception("image %d could not be encoded", image.item_id)
            return {image.item_id: INTERNAL}

    def _encode(self, images: Sequence[Image], pixels: torch.Tensor) -> dict[int, Outcome]:
        rows = self._tower(pixels)
        return {image.item_id: self._write(image, rows[index]) for index, image in enumerate(images)}

    def _write(self, image: Image, rows: torch.Tensor) -> Outcome:
        """Rows [num_image_tokens, hidden] straight from the device into the extent, in the deployment's dtype."""
        try:
            extent = torch.frombuffer(self._arena.writable(image.embed), dtype=self._dtype)
            extent.view(rows.shape).copy_(rows)
            self._arena.seal(image.embed)
        except StaleHandle:
            return LOST
        return ENCODED

    def _register(self, outcomes: dict[int, Outcome]) -> dict[int, Outcome]:
        """An embedding that the cache server does not take, after a restart, is lost."""
        names = list(outcomes)
        try:
            states = self._cache.set_items_embed(names, [outcomes[name] is ENCODED for name in names])
        except Unavailable:
            return dict.fromkeys(names, LOST)
        kept = dict(zip(names, states, strict=True))
        return {
            name: LOST if outcome is ENCODED and kept[name] != "ready" else outcome
            for name, outcome in outcomes.items()
        }
