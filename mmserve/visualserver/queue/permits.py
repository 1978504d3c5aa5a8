"""Decode permits on the visual server's side: getting them from the cache server, and when each is released.

The cache server grants them, as it alone knows how many requests decode in all visual servers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from mmserve.cache_server.client import MediaCacheClient
from mmserve.messages.cache import PermitRequest, PermitsReply
from mmserve.runtime.errors import Unavailable

_RELEASE_RETRY_S = 1.0
logger = logging.getLogger(__name__)


class PermitHolders:
    """Which images are being decoded under which permit. A permit names one attempt of one request.

    A permit ends when its request starts no further image and the encoder has all pixels decoded under it. That holds
    for an aborted request too, as a thread may still be decoding for it. Pure.
    """

    def __init__(self) -> None:
        self._decoding: dict[str, set[int]] = {}
        """Permit -> images decoded under it whose pixels the encoder does not have yet."""
        self._closed: set[str] = set()
        """Permits under which no further image starts."""
        self._ended: list[str] = []

    @property
    def all_closed(self) -> bool:
        """True if no permit has an image left to start."""
        return all(name in self._closed for name in self._decoding)

    def open(self, name: str) -> None:
        """The permit was granted."""
        self._decoding[name] = set()

    def is_open(self, name: str) -> bool:
        """True if further images may start under the permit."""
        return name in self._decoding and name not in self._closed

    def decode(self, name: str, item_ids: Iterable[int]) -> None:
        """These images start to be decoded under the permit."""
        self._decoding[name].update(item_ids)

    def close(self, name: str) -> None:
        """No further image starts under the permit. Harmless without one."""
        if name in self._decoding:
            self._closed.add(name)
            self._end_if_done(name)

    def decline(self, name: str) -> None:
        """Give back a permit that was promised and not granted yet."""
        self._ended.append(name)

    def decoded(self, item_ids: Iterable[int]) -> None:
        """The encoder has the images' pixels, or their decoding failed."""
        done = set(item_ids)
        for name in list(self._decoding):
            self._decoding[name] -= done
            self._end_if_done(name)

    def take_ended(self) -> list[str]:
        """Permits that have ended since the last call; the caller releases them."""
        ended, self._ended = self._ended, []
        return ended

    def _end_if_done(self, name: str) -> None:
        if name in self._closed and not self._decoding[name]:
            del self._decoding[name]
            self._closed.discard(name)
            self._ended.append(name)


class PermitClient:
    """Calls to the cache server, in threads of their own. ``timeout_s``: how long a request may wait for its permit."""

    def __init__(self, cache: MediaCacheClient, timeout_s: float) -> None:
        self._cache = cache
        self.timeout_s = timeout_s
        self._closing = threading.Event()
        self._acquiring, self._releasing = ThreadPoolExecutor(1, "permit"), ThreadPoolExecutor(1, "permit-release")

    def remaining_s(self, received_s: float) -> float:
        """Seconds for which a request that was received then may wait on; 0 when its time is up."""
        return max(0.0, received_s + self.timeout_s - time.monotonic())

    async def acquire(self, requests: Sequence[PermitRequest], wait_s: float) -> PermitsReply:
        """Wait up to wait_s until at least one is granted or promised, or all were released.

        Without a cache server all are granted: decoding will find that the images are gone.
        """
        return await asyncio.get_running_loop().run_in_executor(self._acquiring, self._acquire, requests, wait_s)

    def release(self, name: str) -> None:
        """End a permit, a promise or the waiting for one, without waiting for the cache server."""
        self._releasing.submit(self._release_until_answered, name)

    def close(self, requested: Iterable[str]) -> None:
        """Release ``requested``. This ends a blocked call for them, whose thread would keep the process alive."""
        self._closing.set()
        for name in requested:
            self._release(name)
        for threads in (self._acquiring, self._releasing):
            threads.shutdown(wait=False, cancel_futures=True)

    def _acquire(self, requests: Sequence[PermitRequest], wait_s: float) -> PermitsReply:
        try:
            return self._cache.acquire_permits(requests, wait_s=wait_s)
        except Unavailable:
            return PermitsReply(granted=tuple(request.name for request in requests))

    def _release_until_answered(self, name: str) -> None:
        """A permit that the cache server still counts would be missing in all visual servers. A new cache server, which
        knows no permits of the one before, answers too."""
        while not self._release(name) and not self._closing.wait(_RELEASE_RETRY_S):
            pass

    def _release(self, name: str) -> bool:
        """False if the cache server has not answered."""
        try:
            self._cache.release_permit(name)
        except Unavailable as error:
            logger.info("permit %s is not released yet: %s", name, error.message)
            return False
        return True
