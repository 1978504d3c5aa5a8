"""Limits on the images of one request: what can ever fit the arena and the budgets, and how many bytes may be read."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import NoReturn

from mmserve.config.resolved.budgets import Budgets
from mmserve.httpserver.call import AllocVersion
from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem
from mmserve.monitoring.metrics.client import MetricsClient
from mmserve.runtime.byte_budget import MIB
from mmserve.runtime.errors import TooLarge

logger = logging.getLogger(__name__)


class MediaBudgets:
    """Checks that all images of a request fit at once, in each form that they take: compressed, decoded, embedded.

    One object for each allocation path of a worker.
    """

    def __init__(
        self, budgets: Budgets, arena_nbytes: int, metrics: MetricsClient, alloc_version: AllocVersion
    ) -> None:
        self._budgets = budgets
        self._arena_nbytes = arena_nbytes
        self._metrics = metrics
        self._alloc_version = alloc_version
        self._warned = False

    def check(self, items: Sequence[AllocItem], decoded_nbytes: Sequence[int]) -> None:
        """Raise TooLarge, naming the limit. Equal content counts once.

        Images that are in the cache already count as well, so that the result does not depend on what is cached.

        ``decoded_nbytes``: bytes of pixels, for each item.
        """
        distinct = {item.key: (item, nbytes) for item, nbytes in zip(items, decoded_nbytes, strict=True)}.values()
        data = sum(extent_nbytes(item.data_nbytes) for item, _ in distinct)
        embeds = sum(extent_nbytes(item.embed_nbytes) for item, _ in distinct)
        pixels = sum(nbytes for _, nbytes in distinct)
        for form, nbytes, limit, flag in (
            ("are, with their embeddings,", data + embeds, self._arena_nbytes, "--mm-cache-gb"),
            ("are", data, self._budgets.data_nbytes, "--data-budget-mb"),
            ("decode to", pixels, self._budgets.pixel_nbytes, "--pixel-budget-mb"),
            ("have embeddings of", embeds, self._budgets.embed_nbytes, "--embed-budget-mb"),
        ):
            if nbytes > limit:
                self._refuse(
                    f"the images of this request {form} {nbytes / MIB:.1f} MiB in all; "
                    f"this server takes {limit / MIB:.1f} MiB at once ({flag})"
                )

    def _refuse(self, message: str) -> NoReturn:
        """Raise TooLarge. The first refusal is logged, all are counted."""
        self._metrics.add("mm_alloc_too_large", 1, self._alloc_version)
        if not self._warned:
            self._warned = True
            logger.warning("refused with 413, and so will others be: %s", message)
        raise TooLarge(message)


class RequestByteLimit:
    """How many bytes of images one request may still read, whatever their source. Thread-safe."""

    def __init__(self, nbytes: int) -> None:
        self.left = nbytes
        self.message = f"the request's images exceed {nbytes / MIB:g} MiB in all"
        self._lock = threading.Lock()

    def take(self, nbytes: int) -> None:
        """Raises TooLarge when fewer than ``nbytes`` are left."""
        with self._lock:
            if nbytes > self.left:
                raise TooLarge(self.message)
            self.left -= nbytes
