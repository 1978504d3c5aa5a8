"""Decodes and encodes the pictures that other machines have sent, in the main thread of an encoder."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import torch

from mmserve.messages.media import Processing
from mmserve.model_backend.platforms.device import is_fatal_device_error, is_out_of_memory
from mmserve.model_backend.vision.interface import PixelTensors
from mmserve.processors.interface import Views
from mmserve.runtime.errors import MmserveError
from mmserve.visualserver.batches.call_size import CallSize
from mmserve.visualserver.batches.encode import ComputeRows
from mmserve.visualserver.encoder.dialer import Job
from mmserve.visualserver.encoder.rows_cache import Key, RowsCache
from mmserve.visualserver.remote.frames import Fail, Result, digest

Decode = Callable[[int, memoryview, Processing], Views]
"""As GuardedDecoder.views: the number names the picture, also to the process's successor."""
_NOTHING = memoryview(b"")
logger = logging.getLogger(__name__)


class Worker:
    """``cache``: of rows that were computed before. ``most``: pictures of one call of the tower. ``release_memory``:
    see ``EncoderDevice``. ``advanced``: called behind each picture that is decoded and each call of the tower."""

    def __init__(
        self,
        decode: Decode,
        tower: ComputeRows,
        dtype: torch.dtype,
        cache: RowsCache,
        most: int,
        release_memory: Callable[[], object] = lambda: None,
    ) -> None:
        self._decode, self._tower, self._dtype, self._cache = decode, tower, dtype, cache
        self._call_size, self._release_memory = CallSize(most), release_memory
        self.advanced: Callable[[], object] = lambda: None

    def encode(self, jobs: Sequence[Job]) -> None:
        """Answer each of them, from the cache if it has the rows. Raises the tower's error if the device is lost.

        When memory has run out in a call of the tower, the pictures are tried in calls of half as many, as are later
        ones for a while (``call_size``)."""
        started_s = time.monotonic()
        views: dict[int, PixelTensors] = {}
        for index, job in enumerate(jobs):
            if (rows := self._cache.get(_key(job))) is not None:
                _answer(job, rows, 0.0)
            elif (decoded := self._decoded(job)) is not None:
                views[index] = decoded
            self.advanced()
        if not views:
            return
        found = self._rows(list(views.values()))
        each_s = (time.monotonic() - started_s) / len(views)
        for index, rows in zip(views, found, strict=True):
            if rows is None:
                _fail(jobs[index], "the vision tower has no finite numbers for it")
            else:
                self._cache.put(_key(jobs[index]), rows)
                _answer(jobs[index], rows, each_s)

    def _decoded(self, job: Job) -> PixelTensors | None:
        try:
            return PixelTensors.of(self._decode(_name(job), memoryview(job.data), job.message.processing))
        except MmserveError as error:
            _fail(job, error.message)
        except Exception:  # the boundary of one picture
            logger.exception("a picture could not be decoded")
            _fail(job, "internal error")
        return None

    def _rows(self, views: list[PixelTensors]) -> list[memoryview | None]:
        """None for a picture that cannot be encoded."""
        rows: list[memoryview | None] = []
        while len(rows) < len(views):
            part = views[len(rows) : len(rows) + self._call_size.now]
            rows += self._rows_of_call(part) or ()  # none: again, in smaller calls
        return rows

    def _rows_of_call(self, views: list[PixelTensors]) -> list[memoryview | None] | None:
        """None: memory has run out for so many together. After another error each is encoded alone."""
        try:
            rows = [self._bytes(each) for each in self._tower(views)]
            self._call_size.fitted(len(views))
            self.advanced()
            return rows
        except Exception as error:  # the boundary of one batch
            if is_fatal_device_error(error):
                raise
            out_of_memory = is_out_of_memory(error)
            logger.exception("%d pictures could not be encoded", len(views))
        # Here, where the error does not keep the tower's intermediate results any more.
        if out_of_memory:
            self._release_memory()
        if len(views) == 1:
            return [None]
        if not out_of_memory:
            return [rows for each in views for rows in self._rows_of_call([each]) or ()]
        self._call_size.ran_out(len(views))
        logger.warning("memory ran out: from now on at most %d pictures together", self._call_size.now)
        return None

    def _bytes(self, rows: torch.Tensor) -> memoryview | None:
        """As the arena holds them. None if not all numbers are finite."""
        # A copy: the rows of a batch may be parts of one tensor, which would be kept as long as one of them.
        rows = rows.to(self._dtype, copy=True)
        if not rows.sum(dtype=torch.float32).isfinite():
            return None
        return rows.cpu().contiguous().view(torch.uint8).numpy().reshape(-1).data


def _key(job: Job) -> Key:
    return Key(job.message.key, job.message.digest, job.message.processing)


def _name(job: Job) -> int:
    return int.from_bytes(job.message.digest[:7], "big")


def _answer(job: Job, rows: memoryview, compute_s: float) -> None:
    message = Result(
        job=job.message.job,
        nbytes=rows.nbytes,
        digest=digest(rows),
        here_s=time.monotonic() - job.received_s,
        compute_s=compute_s,
    )
    job.answer(message, rows)


def _fail(job: Job, reason: str) -> None:
    job.answer(Fail(job=job.message.job, reason=reason), _NOTHING)
