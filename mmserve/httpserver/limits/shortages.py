"""What this worker's machine is nearly out of: memory of the control group, descriptors. Looked at with each heartbeat.

While memory is short, one request with images is taken at a time, or none: they take the most, and the kernel's OOM
killer would end a process in the middle of all requests. Requests without images go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum

from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.runtime.byte_budget import MIB
from mmserve.runtime.errors import Unavailable
from mmserve.runtime.memory.cgroup import GroupMemory, MemoryLimit, limited_groups
from mmserve.runtime.shortage import has_descriptors

_MIN_SHARE = 0.05
_MAX_MARGIN_NBYTES = 256 << 20
_NOTHING_LEFT = 1 / 8
_RETRY_AFTER_S = 5.0
logger = logging.getLogger(__name__)


def margin_nbytes(limit_nbytes: int) -> int:
    """Memory is short while less than this is left of a group's limit, inactive page cache counted as free.

    A server that always runs with less still takes images, one request at a time, as long as an eighth of it is left.
    """
    return min(int(_MIN_SHARE * limit_nbytes), _MAX_MARGIN_NBYTES)


class _Images(Enum):
    """Which requests with images are taken; as the log says it."""

    SERVED = "served again"
    ONE_AT_A_TIME = "served one at a time, others are refused (503)"
    REFUSED = "refused (503)"


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
        self._images = _Images.SERVED
        self._num_with_images = 0
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

    @contextmanager
    def images(self) -> Iterator[None]:
        """The life of a request with images. Raises Unavailable if memory is too short for one more."""
        if self._images is _Images.REFUSED or (self._images is _Images.ONE_AT_A_TIME and self._num_with_images):
            self._metrics.add("admission_rejections", 1, "memory")
            raise Unavailable(
                "the server's memory is nearly used up: requests with images have to wait",
                retry_after_s=_RETRY_AFTER_S,
            )
        self._num_with_images += 1
        try:
            yield
        finally:
            self._num_with_images -= 1

    def _look_at_memory(self) -> None:
        found = [memory for group in self._groups if (memory := group.read(margin_nbytes)) is not None]
        least = min(found, key=_left_of_margin, default=None)
        images = _Images.SERVED
        if least is not None and (left := _left_of_margin(least)) < 1:
            images = _Images.REFUSED if left < _NOTHING_LEFT else _Images.ONE_AT_A_TIME
        if least is not None and images is not self._images:
            logger.warning(
                "%.0f of %.0f MiB of this container's memory are left: requests with images are %s",
                least.left_nbytes / MIB,
                least.limit_nbytes / MIB,
                images.value,
            )
        self._images = images


def _left_of_margin(memory: GroupMemory) -> float:
    """From 1 on, memory is not short."""
    return memory.left_nbytes / max(1, margin_nbytes(memory.limit_nbytes))
