"""Tells the operator, once, that the arena is too small for what is asked of it. Decides nothing."""

from __future__ import annotations

import logging

from mmserve.budget import MIB
from mmserve.cache_server.table import Snapshot

logger = logging.getLogger(__name__)


class Shortage:
    """Looks at every snapshot; each kind of shortage is said the first time it is seen."""

    def __init__(self, arena_nbytes: int) -> None:
        self._arena_nbytes = arena_nbytes
        self._said: set[str] = set()

    def look(self, snapshot: Snapshot) -> None:
        """Log what is new."""
        if snapshot.counters["mm_alloc_too_large",]:
            self._say("the images of a request are more than all of it, and refused with 413")
        if snapshot.num_waiting:
            self._say("all of it is in use, and requests wait for space")

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            logger.warning("arena of %.0f MiB: %s; raise --mm-cache-gb", self._arena_nbytes / MIB, what)
