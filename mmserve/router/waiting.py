"""The order in which waiting sequences may enter: first come, first served, with a bounded way round.

Sequences that a client is already watching (preempted, or sent again after a restart) go before new ones. A
sequence that does not fit yet may be bypassed by later ones that do, so that it never idles the machine; after
MAX_BYPASSES it may not, so that it never starves. Knows no KV memory: what fits is the scheduler's judgement.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain, islice

from mmserve.router.sequence import Sequence

WINDOW = 8
"""Sequences looked at in one step, however many wait."""
MAX_BYPASSES = 64


class WaitingQueue:
    """All operations take constant time."""

    def __init__(self) -> None:
        self._begun: OrderedDict[int, Sequence] = OrderedDict()
        self._fresh: OrderedDict[int, Sequence] = OrderedDict()

    def __len__(self) -> int:
        return len(self._begun) + len(self._fresh)

    def push(self, sequence: Sequence) -> None:
        """A request received: behind all of its kind."""
        queue = self._begun if sequence.num_output_tokens else self._fresh
        queue[sequence.number] = sequence

    def push_front(self, sequence: Sequence) -> None:
        """A preempted sequence: before all others. The newest is preempted first, so the oldest ends in front."""
        self._begun[sequence.number] = sequence
        self._begun.move_to_end(sequence.number, last=False)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that waits, wherever it stands."""
        if self._begun.pop(sequence.number, None) is None:
            del self._fresh[sequence.number]

    def candidates(self) -> list[Sequence]:
        """The sequences that may enter now, best first; the first WINDOW, none behind one bypassed too often."""
        found: list[Sequence] = []
        for sequence in islice(chain(self._begun.values(), self._fresh.values()), WINDOW):
            found.append(sequence)
            if sequence.times_bypassed >= MAX_BYPASSES:
                break
        return found

    def enter(self, sequence: Sequence, bypassed: list[Sequence]) -> None:
        """The candidate enters, past the candidates ``bypassed``."""
        self.remove(sequence)
        for other in bypassed:
            other.times_bypassed += 1
