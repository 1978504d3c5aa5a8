"""Turns at decoding, asked of the cache server in threads: it alone knows how many requests decode in all processes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from mmserve.cache_server.client import MediaCacheClient
from mmserve.messages.cache import PermitRequest, PermitsReply
from mmserve.runtime.errors import Unavailable
from mmserve.visualserver.batch_queue import PendingRequest, PermitCandidate

logger = logging.getLogger(__name__)


class PermitClient:
    """``patience_s``: how long a request waits for its turn in all."""

    def __init__(self, cache: MediaCacheClient, patience_s: float) -> None:
        self._cache = cache
        self.patience_s = patience_s
        self._asking, self._ending = ThreadPoolExecutor(1, "turn"), ThreadPoolExecutor(1, "turn-end")

    async def come(self, candidates: Sequence[PermitCandidate]) -> PermitsReply:
        """Wait until turns have come. None have: all have been given up (``end``), or the first is late.

        Without a cache server there is nothing to be decoded, and nothing to wait for: decoding will say so.
        """
        return await asyncio.get_running_loop().run_in_executor(self._asking, self._ask, candidates)

    def left_s(self, held: PendingRequest) -> float:
        """Seconds for which it may wait on; 0 when it has waited long enough."""
        return max(0.0, held.received_s + self.patience_s - time.monotonic())

    def end(self, name: str) -> None:
        """The turn is over, or not wanted any more. Does not wait for the cache server to hear of it."""
        self._ending.submit(self._end, name)

    def close(self, asked: Iterable[PendingRequest]) -> None:
        """Nobody waits for a turn any more, ``asked`` neither: a thread that still did would keep the process alive."""
        for held in asked:
            self._end(held.permit_name)
        for threads in (self._asking, self._ending):
            threads.shutdown(wait=False, cancel_futures=True)

    def _ask(self, candidates: Sequence[PermitCandidate]) -> PermitsReply:
        left_s = self.left_s(candidates[0].pending)
        wanted = [
            PermitRequest(candidate.pending.permit_name, candidate.nbytes, candidate.pending.request.arrival_s)
            for candidate in candidates
        ]
        try:
            return self._cache.begin_turns(wanted, wait_s=left_s)
        except Unavailable:
            return PermitsReply(come=tuple(claim.name for claim in wanted))

    def _end(self, name: str) -> None:
        try:
            self._cache.end_turn(name)
        except Unavailable:
            logger.info("turn %s ended with the cache server that gave it", name)
