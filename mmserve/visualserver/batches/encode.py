"""Runs the vision tower on decoded batches, writes the rows into the arena and reports them to the cache server."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import torch

from mmserve.cache_server.client import MediaCacheClient
from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.model_backend.platforms.device import is_fatal_device_error, is_out_of_memory
from mmserve.model_backend.row_copies import PlainRowCopies, RowCopies
from mmserve.model_backend.transfers import PlainTransfers, Transfers
from mmserve.model_backend.vision.interface import PixelTensors
from mmserve.runtime.errors import Shortage, Unavailable
from mmserve.visualserver.batches.call_size import CallSize
from mmserve.visualserver.batches.image_decode import DecodedBatch
from mmserve.visualserver.batches.work_journal import WorkJournal
from mmserve.visualserver.images import ENCODED, INTERNAL, LOST, NOT_FINITE, Image, Outcome, item_ids

ComputeRows = Callable[[Sequence[PixelTensors]], list[torch.Tensor]]
"""A vision tower behind the pixels' way to it: the rows [rows, streams * hidden] of each picture."""

logger = logging.getLogger(__name__)


class EncoderDevice(NamedTuple):
    """What the thread that encodes has of its platform."""

    begin: Callable[[], object]
    """What it does first."""
    transfers: Transfers
    copies: RowCopies
    """Into the arena."""
    release_memory: Callable[[], object] = lambda: None
    """Return what the allocator keeps, after memory has run out."""
    num_pictures: Callable[[Sequence[int]], int] = len
    """How many of the next pictures, with so many bytes of pixels, one call of the tower gets; at least one."""
    progress: Callable[[], int] = lambda: 0
    """Grows within a call of a tower that rests, which computes little in a long time. Any thread may ask."""
    takes_whole: bool = False
    """It makes the views of pictures that are only decoded."""


HOST = EncoderDevice(lambda: None, PlainTransfers(torch.device("cpu")), PlainRowCopies())


@dataclass(frozen=True)
class EncodeResult:
    """Result of one call of the tower."""

    outcomes: dict[int, Outcome]
    """Item id -> outcome, for every image of the call."""
    seconds: float
    """Time of the tower and of the copy into the arena."""
    written_nbytes: int
    """Bytes of embedding rows written into the arena."""


@dataclass(frozen=True)
class EncoderBatch:
    """Images and the views of each. Holds the only reference to the views."""

    images: Sequence[Image]
    views: Sequence[PixelTensors]


class Encoder:
    """Runs the tower. ``encode`` is not thread-safe and blocks, so never call it on the event loop.

    ``tower_images``: most images of one call of the tower, whose intermediate results take memory. ``device``: the
    tower's.
    """

    def __init__(
        self,
        tower: ComputeRows,
        dtype: torch.dtype,
        arena: Arena,
        cache: MediaCacheClient,
        journal: WorkJournal,
        tower_images: int,
        device: EncoderDevice = HOST,
    ) -> None:
        self._tower = tower
        self._call_size = CallSize(tower_images)
        self._dtype = dtype
        self._arena = arena
        self._cache = cache
        self._journal = journal
        self._device = device

    def take(self, decoded: DecodedBatch) -> EncoderBatch:
        """Move the views out of ``decoded``, without a copy."""
        views, decoded.views = decoded.views, []
        assert len(views) == len(decoded.images), "the views were taken before"
        return EncoderBatch(decoded.images, [PixelTensors.of(each) for each in views])

    def encode(self, batches: list[EncoderBatch]) -> EncodeResult:
        """Encode all batches. Clears the list, so that the views are freed once they are encoded.

        When memory has run out in a call of the tower, the same images are tried in calls of half as many, as are
        later ones for a while (``call_size``).
        After another error each image of the call is encoded alone. Only those fail that fail alone.
        If this server has died during the work on one of them, each is encoded alone too, to find out which one it is.
        Raises the tower's error if the device is lost.
        """
        started_s = time.monotonic()
        images = [image for batch in batches for image in batch.images]
        views = [each for batch in batches for each in batch.views]
        batches.clear()
        outcomes: dict[int, Outcome] = {}
        left = list(images)
        while left:
            count = self._device.num_pictures([each.nbytes for each in views[: self._call_size.now]])
            if (found := self._encode_part(left[:count], views[:count])) is None:
                continue  # in smaller calls
            outcomes |= found
            del left[:count], views[:count]
        written_nbytes = sum(image.embed.nbytes for image in images if outcomes[image.item_id] is ENCODED)
        return EncodeResult(reported(self._cache, outcomes), time.monotonic() - started_s, written_nbytes)

    def _encode_part(self, images: Sequence[Image], views: Sequence[PixelTensors]) -> dict[int, Outcome] | None:
        """None: memory has run out for so many images together."""
        out_of_memory = False
        if not any(self._journal.num_deaths(image.item_id) for image in images):
            try:
                found = self._encode(images, views)
                self._call_size.fitted(len(images))
                return found
            except Exception as error:  # the boundary of one batch
                if is_fatal_device_error(error):
                    raise
                out_of_memory = is_out_of_memory(error)
                logger.exception("a batch of %d images failed, trying fewer of them", len(images))
        outcomes: dict[int, Outcome] = {}
        if out_of_memory:  # here, where the error does not keep the tower's intermediate results any more
            self._device.release_memory()
            if len(images) > 1:
                self._call_size.ran_out(len(images))
                logger.warning("memory ran out: from now on at most %d images together", self._call_size.now)
                return None
        for image, each in zip(images, views, strict=True):
            outcomes |= self._encode_alone(image, each)
            self._journal.clear([image.item_id])
        return outcomes

    def _encode_alone(self, image: Image, views: PixelTensors) -> dict[int, Outcome]:
        try:
            return self._encode([image], [views])
        except Exception as error:  # the boundary of one image
            if is_fatal_device_error(error):
                raise
            logger.exception("image %d could not be encoded", image.item_id)
            return {image.item_id: INTERNAL}

    def _encode(self, images: Sequence[Image], views: Sequence[PixelTensors]) -> dict[int, Outcome]:
        with self._journal.working(item_ids(images), ends_process=is_fatal_device_error):
            rows = [each.to(self._dtype) for each in self._tower(views)]
            finite = self._device.transfers.to_host(_finite(rows)).wait().tolist()
            outcomes = {image.item_id: NOT_FINITE for image in images}
            good = [(image, each) for image, each, is_finite in zip(images, rows, finite, strict=True) if is_finite]
            return outcomes | self._write(good)

    def _write(self, good: Sequence[tuple[Image, torch.Tensor]]) -> dict[int, Outcome]:
        """Copy rows [rows, streams * hidden] in the deployment's dtype from the device into the extents, all at a time.

        Raises an error if they are not as many as an extent has room for; none of them is sealed then.
        """
        outcomes: dict[int, Outcome] = {}
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        with ExitStack() as writing:
            for image, rows in good:
                try:
                    payload = writing.enter_context(self._arena.writing(image.embed))
                except StaleHandle:
                    outcomes[image.item_id] = LOST
                    continue
                outcomes[image.item_id] = ENCODED
                pairs.append((rows, torch.frombuffer(payload, dtype=self._dtype).view(rows.shape)))
            try:
                self._device.copies.write(pairs)
            finally:
                self._device.copies.wait()  # before the extents are given free
        return outcomes


def reported(cache: MediaCacheClient, outcomes: dict[int, Outcome]) -> dict[int, Outcome]:
    """Report outcomes. An embedding that the cache server does not accept, after its restart, is lost."""
    ids = list(outcomes)
    try:
        states = cache.set_items_embed(ids, [outcomes[item_id] is ENCODED for item_id in ids])
    except Shortage as error:
        return dict.fromkeys(ids, Outcome("shortage", error.message))
    except Unavailable:
        return dict.fromkeys(ids, LOST)
    state_of = dict(zip(ids, states, strict=True))
    return {
        item_id: LOST if outcome is ENCODED and state_of[item_id] != "ready" else outcome
        for item_id, outcome in outcomes.items()
    }


def _finite(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    """Bool [images]: whether all numbers of each image's rows are finite.

    A sum is NaN or infinite if one of its numbers is. It takes a fifteenth of the time of ``isfinite`` on each number.
    """
    return torch.stack([each.sum(dtype=torch.float32) for each in rows]).isfinite()
