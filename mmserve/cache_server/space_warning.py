"""Tells the operator, once, that requests wait for space in the arena. Decides nothing."""

from __future__ import annotations

import logging

from mmserve.cache_server.shared_table import Snapshot
from mmserve.runtime.byte_budget import MIB

logger = logging.getLogger(__name__)


class SpaceWarning:
    """Looks at every snapshot."""

    def __init__(self, arena_nbytes: int) -> None:
        self._arena_nbytes = arena_nbytes
        self._said = False

    def look(self, snapshot: Snapshot) -> None:
        """Log it the first time that it is seen."""
        if snapshot.num_waiting and not self._said:
            self._said = True
            logger.warning(
                "arena of %.0f MiB: all of it is in use, and requests wait for space; raise --mm-cache-gb",
                self._arena_nbytes / MIB,
            )
