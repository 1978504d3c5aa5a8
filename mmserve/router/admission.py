"""Who has a slot and KV blocks: those waiting that fit the cache now and, as far as can be foreseen, later.

Knows no token budget and no ranks; the caller stops asking when its step is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mmserve.router.forecast import KvForecast, OutputLengths
from mmserve.router.kv_ledger import Holding, KvLedger, blocks_for
from mmserve.router.running import RunningSet
from mmserve.router.sequence import Phase, Sequence
from mmserve.router.waiting import WaitingQueue


class Admission:
    """The way from the waiting queue into a slot, and out of it."""

    def __init__(self, waiting: WaitingQueue, running: RunningSet, kv: KvLedger) -> None:
        self._waiting = waiting
        self._running = running
        self._kv = kv
        self.outputs = OutputLengths()

    def enter(self, room: Callable[[Sequence], int]) -> Iterator[Sequence]:
        """Move sequences for which there is ``room``, in tokens, one by one into slots, yielding each with its cached
        prefix counted as planned.

        The caller publishes what one will fill before it asks for the next, so that the next may use it (n > 1, many
        requests with one new image).
        """
        candidates = self._waiting.candidates() if self._running.has_room else []
        if all(sequence.refused_after == self._kv.num_frees for sequence in candidates):
            return
        forecast = self._forecast()
        bypassed: list[Sequence] = []
        for sequence in filter(room, candidates):
            holding = self._reserve(sequence, forecast)
            if holding is None:
                bypassed.append(sequence)
                continue
            self._waiting.enter(sequence, bypassed)
            self._running.enter(sequence, holding, holding.hit.num_tokens)
            yield sequence
            if not self._running.has_room:
                return

    def leave(self, sequence: Sequence) -> None:
        """Give back the sequence's slot and blocks; if it waits, at the head of the queue."""
        assert sequence.holding is not None
        num_computed = min(sequence.planned, len(sequence.tokens))
        self._kv.publish_rest(sequence.holding, sequence.tokens, num_computed)
        self._kv.free(sequence.holding)
        self._running.leave(sequence)
        sequence.leave()
        if sequence.phase is Phase.WAITING:
            self._waiting.push_front(sequence)

    def _reserve(self, sequence: Sequence, forecast: KvForecast) -> Holding | None:
        """Memory for all tokens that the sequence has so far, if it may enter. One that is alone always may."""
        match = self._kv.match(sequence.tokens)
        num_blocks = blocks_for(len(sequence.tokens))
        growth = blocks_for(self.outputs.final_length(sequence)) - num_blocks
        held = num_blocks - len(match.nodes)
        shared = self._kv.num_idle(match.nodes)
        if not forecast.fits(growth=growth, held=held, shared=shared):
            sequence.refused_after = self._kv.num_frees
            return None
        forecast.add(growth=growth, held=held, shared=shared)
        return self._kv.reserve(len(sequence.tokens), match)

    def _forecast(self) -> KvForecast:
        final_length, running = self.outputs.final_length, []
        held_by_all = 0
        for sequence in self._running.sequences:
            holding = sequence.holding
            assert holding is not None
            num_blocks = len(holding.blocks)
            held = num_blocks - holding.num_hit_blocks
            running.append((blocks_for(final_length(sequence)) - num_blocks, held))
            held_by_all += held
        return KvForecast(self._kv.num_blocks, self._kv.num_held - held_by_all, running)
