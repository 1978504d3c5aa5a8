"""Who has a slot and KV blocks: those waiting that fit the cache now and, as far as can be foreseen, later.

Knows no token budget and no ranks; the caller stops asking when its step is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mmserve.router.kv_cache.manager import BlockTable, KvCacheManager
from mmserve.router.scheduler.kv_demand import KvDemandEstimator
from mmserve.router.scheduler.running_set import RunningSet
from mmserve.router.scheduler.sequence import Phase, Sequence
from mmserve.router.scheduler.waiting_queue import WaitingQueue


class Admission:
    """The way from the waiting queue into a slot, and out of it."""

    def __init__(self, waiting: WaitingQueue, running: RunningSet, kv: KvCacheManager) -> None:
        self._waiting = waiting
        self._running = running
        self._kv = kv
        self.outlook = KvDemandEstimator(kv.num_blocks)

    def enter(self, room: Callable[[Sequence], int]) -> Iterator[Sequence]:
        """Move sequences for which there is ``room``, in tokens, one by one into slots, yielding each with its cached
        prefix counted as planned.

        The caller publishes what one will fill before it asks for the next, so that the next may use it (n > 1, many
        requests with one new image).
        """
        candidates = self._waiting.candidates() if self._running.has_room else []
        if all(sequence.refused_after == self._kv.num_frees for sequence in candidates):
            return
        bypassed: list[Sequence] = []
        for sequence in filter(room, candidates):
            holding = self._reserve(sequence)
            if holding is None:
                bypassed.append(sequence)
                continue
            self._waiting.enter(sequence, bypassed)
            self._running.enter(sequence, holding, holding.hit.num_tokens)
            self.outlook.entered(sequence)
            yield sequence
            if not self._running.has_room:
                return

    def leave(self, sequence: Sequence) -> None:
        """Give back the sequence's slot and blocks; if it waits, at the head of the queue."""
        assert sequence.holding is not None
        num_computed = min(sequence.planned, len(sequence.tokens))
        self._kv.publish_rest(sequence.holding, sequence.tokens, num_computed)
        self.outlook.left(sequence)
        self._kv.free(sequence.holding)
        self._running.leave(sequence)
        sequence.leave()
        if sequence.phase is Phase.WAITING:
            self._waiting.push_front(sequence)

    def _reserve(self, sequence: Sequence) -> BlockTable | None:
        """Memory for all tokens that the sequence has so far, if it may enter. One that is alone always may."""
        match = self._kv.match(sequence.tokens)
        shared = self._kv.num_idle(match.nodes)
        if self.outlook.fits(sequence, num_hit=len(match.nodes), shared=shared, num_held=self._kv.num_held):
            return self._kv.reserve(len(sequence.tokens), match)
        sequence.refused_after = self._kv.num_frees
        return None
