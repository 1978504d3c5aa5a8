"""What this worker's machine is nearly out of: memory of the control group, descriptors. Looked at with each heartbeat.

Requests with images are refused while memory is short: they take the most, and the kernel's OOM killer would end a
process in the middle of all requests. The others go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from mmserve.metrics.client import MetricsClient
from mmserve.runtime.byte_budget import MIB
from mmserve.runtime.cgroup import GroupMemory, MemoryLimit, limited_groups
from mmserve.runtime.errors import Unavailable
from mmserve.runtime.shortage import has_descriptors

MIN_LEFT = 0.05
"""Memory is short while less than this share of a group's limit is left, inactive page cache counted as free."""
_RETRY_AFTER_S = 5.0
logger = logging.getLogger(__name__)


class Shortages:
    """Owns, for one worker, whether memory is short. Used from the event loop only."""

    def __init__(
        self,
        metrics: MetricsClient,
        groups: Sequence[MemoryLimit] | None = None,
        has_descriptors: Callable[[], bool] = has_descriptors,
    ) -> None:
        """``groups``: the memory limits to observe; default: those of this process."""
        self._metrics = metrics
        self._groups = limited_groups() if groups is None else groups
        self._has_descriptors = has_descriptors
        self._memory_short = False
        self._descriptors_short = False

    def look(self) -> None:
        """Look again, and log what has changed. Takes some tens of microseconds; call it about once a second."""
        short = not self._has_descriptors()
        if short and not self._descriptors_short:
            logger.error("no file descriptors are left: new connections are closed; raise `ulimit -n`")
        elif self._descriptors_short and not short:
            logger.warning("there are file descriptors again")
        self._descriptors_short = short
        if not short:  # else what is known of the memory stays, as it cannot be read
            self._look_at_memory()

    def check_images(self) -> None:
        """For a request with images: raises Unavailable while memory is short."""
        if self._memory_short:
            self._metrics.add("admission_rejections", 1, "memory")
            raise Unavailable(
                "the server's memory is nearly used up, it takes no requests with images now",
                retry_after_s=_RETRY_AFTER_S,
            )

    def _look_at_memory(self) -> None:
        found = [memory for group in self._groups if (memory := group.read(enough=MIN_LEFT)) is not None]
        least = min(found, key=_share_left, default=None)
        short = least is not None and _share_left(least) < MIN_LEFT
        if least is not None and short != self._memory_short:
            logger.warning(
                "%.0f of %.0f MiB of this container's memory are left: requests with images are %s",
                least.left_nbytes / MIB,
                least.limit_nbytes / MIB,
                "refused (503)" if short else "served again",
            )
        self._memory_short = short


def _share_left(memory: GroupMemory) -> float:
    return memory.left_nbytes / max(1, memory.limit_nbytes)
