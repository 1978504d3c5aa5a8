"""Decides whether a waiting sequence may start: it must fit the KV cache now and, by estimate, until it ends, and have
something to compute before an image that is not encoded. Pure: no clock, no I/O.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from mmserve.router.kv_cache.manager import BlockTable, KvCacheManager, PrefixMatch
from mmserve.router.scheduler.image_requests import ImageRequests
from mmserve.router.scheduler.kv_demand import KvDemandEstimator
from mmserve.router.scheduler.queues import RunningSet, WaitingQueue
from mmserve.router.scheduler.sequence import Sequence, SequenceStatus

_MIN_TOKENS_BEFORE_IMAGE = 16
"""A sequence runs for at least so many tokens before an image that is not encoded, in steps in which others run."""


class Admission:
    """Moves sequences into the waiting queue, from there into slots with KV blocks, and back out.

    A sequence with images that are not encoded may run for the part of its prompt before them. It then leaves its
    slot; the blocks that it has computed stay in the prefix cache, where it finds them when it starts again.
    """

    def __init__(
        self,
        waiting: WaitingQueue,
        running: RunningSet,
        kv: KvCacheManager,
        images: ImageRequests,
        own_step_tokens: Callable[[], float],
    ) -> None:
        """``own_step_tokens``: prompt tokens that are worth a step of their own."""
        self._waiting = waiting
        self._running = running
        self._kv = kv
        self._images = images
        self._own_step_tokens = own_step_tokens
        self.kv_demand = KvDemandEstimator(kv)

    @property
    def waits_for_blocks(self) -> bool:
        """True if a sequence that may start next had no room in the KV cache when it was looked at last."""
        return any(sequence.num_frees_when_refused >= 0 for sequence in self._waiting.candidates())

    def enqueue(self, sequence: Sequence) -> None:
        """Queues a sequence that has arrived, or of which more images are encoded than before."""
        if not sequence.not_encoded or self._has_work(sequence, self._match(sequence).num_tokens):
            self._waiting.push(sequence)
        else:
            self._waiting.set_aside(sequence)

    def admit(self, room: Callable[[Sequence], int]) -> Iterator[Sequence]:
        """Starts waiting sequences one by one, and yields each once it has its slot and blocks.

        ``room``: prompt tokens of the sequence that the step can still compute; 0 skips it. The caller caches the
        blocks that a sequence will fill before it asks for the next one, so that the next one can share them.
        """
        started = True
        while started and self._running.has_free_slot:
            started = False
            bypassed: list[Sequence] = []
            for sequence in self._waiting.candidates():
                if not room(sequence):
                    continue
                if sequence.num_frees_when_refused == self._kv.num_frees:
                    bypassed.append(sequence)
                    continue
                match = self._match(sequence)
                if not self._has_work(sequence, match.num_tokens):  # cached blocks have been evicted
                    self._waiting.remove(sequence)
                    self._waiting.set_aside(sequence)
                    started = True
                    continue
                if (block_table := self._allocate(sequence, match)) is None:
                    bypassed.append(sequence)
                    continue
                self._waiting.pop(sequence, bypassed)
                self._running.add(sequence, block_table)
                self.kv_demand.add(sequence)
                started = True
                yield sequence
                if not self._running.has_free_slot:
                    return

    def release(self, sequence: Sequence) -> None:
        """Frees the sequence's slot and blocks, and caches the blocks. A waiting one goes to the head of the queue,
        if it has something to compute."""
        assert sequence.block_table is not None
        waits = sequence.status is SequenceStatus.WAITING
        has_work = waits and self._has_work(sequence, sequence.num_computed_tokens)
        self._kv.cache_partial_block(sequence.block_table, sequence.tokens, sequence.num_known_computed_tokens)
        self.kv_demand.remove(sequence)
        self._kv.free(sequence.block_table)
        self._running.remove(sequence)
        sequence.reset()
        if has_work:
            self._waiting.push_front(sequence)
        elif waits:
            self._waiting.set_aside(sequence)

    def _match(self, sequence: Sequence) -> PrefixMatch:
        num_cacheable = sequence.num_cacheable_tokens
        return self._kv.match_prefix(
            sequence.tokens if num_cacheable == len(sequence.tokens) else sequence.tokens[:num_cacheable],
            sequence.request.cache_salt,
        )

    def _has_work(self, sequence: Sequence, num_computed: int) -> bool:
        """True if enough can be computed after the first ``num_computed`` tokens. Asks for the images that it needs.

        A suspect, or a sequence that may become one, runs only as a whole: its death would be counted wrongly.
        """
        if not sequence.not_encoded:
            return True
        self._images.ask(sequence, num_computed)
        end = sequence.ready_end(num_computed)
        return end == sys.maxsize or (
            end - num_computed >= self._min_tokens_before_image() and not sequence.request.num_deaths
        )

    def _min_tokens_before_image(self) -> float:
        return max(_MIN_TOKENS_BEFORE_IMAGE, 0.0 if self._running.sequences else self._own_step_tokens())

    def _allocate(self, sequence: Sequence, match: PrefixMatch) -> BlockTable | None:
        """Blocks for those of the sequence's tokens that it can compute; None if it may not start. A sequence always
        may if no other one runs."""
        num_newly_used = self._kv.num_unreferenced(match.nodes)
        if self.kv_demand.fits(sequence, num_hit_blocks=len(match.nodes), num_used=self._kv.num_used + num_newly_used):
            num_tokens = min(len(sequence.tokens), sequence.ready_end(match.num_tokens))
            return self._kv.allocate(num_tokens, match, sequence.request.spans)
        sequence.num_frees_when_refused = self._kv.num_frees
        return None
