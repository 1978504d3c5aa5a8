"""Decodes a picture in this process, or in a child process if it may end the process that decodes it.

Decoders are native code that reads files of strangers. If this server was killed while it decoded, the pictures that it
decoded are suspects: their decoding is tried once more, in the child. For a minute after such a death all pictures go
to the child, so that whoever sends one deadly picture after the other ends the child only.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from mmserve.messages.media import Processing
from mmserve.processors.image_processors import ImageProcessors
from mmserve.processors.interface import Views
from mmserve.runtime.errors import MmserveError
from mmserve.visualserver.batches.work_journal import MAX_DEATHS, WorkJournal

ISOLATION_S = 60.0
"""How long all pictures are decoded in the child, after one that killed this process or the child. Longer than the time
in which the supervisor allows a few restarts."""
OVERDUE_S = 60.0
"""A picture that takes longer is stuck: computing for it no longer counts as progress."""
logger = logging.getLogger(__name__)


class Isolated(Protocol):
    """Implemented by processors.isolated.IsolatedDecoder."""

    num_killed: int

    def views(self, data: bytes | memoryview, processing: Processing) -> Views: ...
    def end_idle(self) -> None: ...
    def close(self) -> None: ...


class GuardedDecoder:
    """Thread-safe. ``whole``: pictures may stay whole, as ``ImageProcessor.views`` has it; the child makes views."""

    def __init__(
        self,
        processors: ImageProcessors,
        isolated: Isolated,
        journal: WorkJournal,
        *,
        whole: bool = False,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._whole = whole
        self._processors = processors
        self._isolated = isolated
        self._journal = journal
        self._now = now
        self._isolated_until_s = now() + ISOLATION_S if journal.died_decoding else 0.0
        self._started_s: dict[int, float] = {}
        if journal.suspects:
            logger.warning("images during whose work this server died, by number of deaths: %s", journal.suspects)

    def views(self, item_id: int, data: bytes | memoryview, processing: Processing) -> Views:
        """Decode one image. Raises MediaError (it cannot be decoded, or ends its decoder) or MmserveError (this server
        died MAX_DEATHS times while it worked on the image)."""
        num_deaths = self._journal.num_deaths(item_id)
        if num_deaths >= MAX_DEATHS:
            self._journal.clear([item_id])  # of this item nothing more will be heard: its requests are aborted
            raise MmserveError(f"the visual server died {num_deaths} times while it worked on this image")
        self._started_s[item_id] = self._now()
        try:
            if num_deaths or self._now() < self._isolated_until_s:
                return self._isolate(data, processing)
            self._isolated.end_idle()
            with self._journal.working([item_id], decoding=True):
                return self._processors.of(processing).views(data, whole=self._whole)
        finally:
            del self._started_s[item_id]

    def close(self) -> None:
        """Kill the child process."""
        self._isolated.close()

    @property
    def is_overdue(self) -> bool:
        """True if a picture has been decoded for longer than OVERDUE_S."""
        return self._now() - min(list(self._started_s.values()), default=self._now()) > OVERDUE_S

    def _isolate(self, data: bytes | memoryview, processing: Processing) -> Views:
        num_killed = self._isolated.num_killed
        try:
            return self._isolated.views(data, processing)
        finally:
            if self._isolated.num_killed > num_killed:
                self._isolated_until_s = self._now() + ISOLATION_S
