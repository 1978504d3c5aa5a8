"""Whether one request's images can ever pass: each form that they take, all of them at once, against its budget."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import NoReturn

from mmserve.config.deployment import Budgets
from mmserve.httpserver.call import AllocVersion
from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem
from mmserve.metrics.client import MetricsClient
from mmserve.runtime.byte_budget import MIB
from mmserve.runtime.errors import TooLarge

logger = logging.getLogger(__name__)


class MediaBudgets:
    """As one lane of an HTTP worker knows them."""

    def __init__(
        self, budgets: Budgets, arena_nbytes: int, metrics: MetricsClient, alloc_version: AllocVersion
    ) -> None:
        self._budgets = budgets
        self._arena_nbytes = arena_nbytes
        self._metrics = metrics
        self._alloc_version = alloc_version
        self._said = False

    def check(self, items: Sequence[AllocItem], decoded_nbytes: Sequence[int]) -> None:
        """Raises TooLarge, naming the limit; of what is cached already or not, so that no request passes by luck.

        ``decoded_nbytes``: of each item; content that comes twice counts once.
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
        """Also tells the operator: once, and then by the metric."""
        self._metrics.add("mm_alloc_too_large", 1, self._alloc_version)
        if not self._said:
            self._said = True
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
