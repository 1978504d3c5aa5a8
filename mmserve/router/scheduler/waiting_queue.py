"""The order in which waiting sequences may enter: first come, first served, with a bounded way round.

Sequences that a client is already watching (preempted, or sent again after a restart) go before new ones, and new ones
without pictures before those with: a picture's hundreds of tokens must not hold up a line of text. After TEXTS_FIRST
of them the oldest with pictures has its turn, however much text comes. A sequence that does not fit yet may be
bypassed by later ones that do, so that it never idles the machine; after MAX_BYPASSES it may not, so that it never
starves. Knows no KV memory: what fits is the scheduler's judgement.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import chain, islice

from mmserve.router.scheduler.sequence import Sequence

WINDOW = 8
"""Sequences looked at in one step, however many wait."""
MAX_BYPASSES = 64
TEXTS_FIRST = 8
"""Later requests without pictures that enter before the oldest with pictures: about as many short questions as cost
what one picture costs."""


class WaitingQueue:
    """All operations take constant time."""

    def __init__(self) -> None:
        self._begun: OrderedDict[int, Sequence] = OrderedDict()
        self._text: OrderedDict[int, Sequence] = OrderedDict()
        self._media: OrderedDict[int, Sequence] = OrderedDict()
        self._num_texts_first = 0
        """Later ones that have entered before the oldest of ``_media``."""

    def __len__(self) -> int:
        return len(self._begun) + len(self._text) + len(self._media)

    @property
    def has_text(self) -> bool:
        """Does one of those that may enter now have no pictures?"""
        return bool(self._text) or not all(each.request.spans for each in islice(self._begun.values(), WINDOW))

    def push(self, sequence: Sequence) -> None:
        """A request received: behind all of its kind."""
        fresh = self._media if sequence.request.spans else self._text
        queue = self._begun if sequence.num_output_tokens else fresh
        queue[sequence.number] = sequence

    def push_front(self, sequence: Sequence) -> None:
        """A preempted sequence: before all others. The newest is preempted first, so the oldest ends in front."""
        self._begun[sequence.number] = sequence
        self._begun.move_to_end(sequence.number, last=False)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that waits, wherever it stands."""
        if sequence is self._oldest_media():
            self._num_texts_first = 0
        for queue in (self._begun, self._text, self._media):
            if queue.pop(sequence.number, None) is not None:
                return
        raise KeyError(sequence.number)

    def candidates(self) -> list[Sequence]:
        """The sequences that may enter now, best first; the first WINDOW, none behind one bypassed too often."""
        found: list[Sequence] = []
        for sequence in islice(chain(self._begun.values(), self._fresh()), WINDOW):
            found.append(sequence)
            if sequence.times_bypassed >= MAX_BYPASSES:
                break
        return found

    def enter(self, sequence: Sequence, bypassed: list[Sequence]) -> None:
        """The candidate enters, past the candidates ``bypassed``."""
        oldest = self._oldest_media()
        if oldest is not None and sequence.number in self._text and oldest.number < sequence.number:
            self._num_texts_first += 1
        self.remove(sequence)
        for other in bypassed:
            other.times_bypassed += 1

    def _fresh(self) -> Iterable[Sequence]:
        text, media = self._text.values(), self._media.values()
        if self._num_texts_first < TEXTS_FIRST:
            return chain(text, media)
        return chain(islice(media, 1), text, islice(media, 1, None))

    def _oldest_media(self) -> Sequence | None:
        return next(iter(self._media.values()), None)
