"""The waiting queue and the set of running sequences. Pure: no clock, no I/O."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterable
from itertools import chain, islice

from mmserve.router.kv_cache.manager import BlockTable
from mmserve.router.scheduler.sequence import Sequence, SequenceStatus

MAX_CANDIDATES = 8
"""Waiting sequences looked at at once. Keeps the cost of a step independent of how many wait that cannot start."""
MAX_BYPASSES = 64
MAX_TEXTS_BEFORE_MEDIA = 8
"""Later text requests that may start before the oldest request with images. About as many short prompts as cost what
one image costs."""


class WaitingQueue:
    """Waiting sequences in the order in which they may start: first come, first served, with bounded exceptions.

    - Resumed sequences (preempted, or sent again after a restart) go before new ones: a client is reading their output.
    - Suspects (``suspects``) start one at a time. The oldest comes after all resumed sequences, which it may take along
      when the engine dies, and before new ones; the others wait behind it and are in nobody's way.
    - New requests of a lower ``priority`` value go before all others, for as long as there are any.
    - Among new ones of a priority, text requests go before requests with images, so that hundreds of image tokens do
      not delay a line of text. After MAX_TEXTS_BEFORE_MEDIA of them the oldest request with images is first.
    - Sequences that have nothing to compute before an image is encoded are apart: they cannot start, and count neither
      as waiting nor as bypassed.
    - A sequence that does not fit yet may be bypassed by later ones that do, so that the engine is not idle. After
      MAX_BYPASSES it may not, so that it does not starve.

    No operation's time depends on how many sequences wait; it may depend on how many priorities they have.
    """

    def __init__(self) -> None:
        self._resumed: OrderedDict[int, Sequence] = OrderedDict()
        self._suspects: OrderedDict[int, Sequence] = OrderedDict()
        self._levels: dict[int, _Level] = {}
        """Priority -> the new requests that have it; at least one."""
        self._priorities: list[int] = []
        """Ascending."""
        self._awaiting_images: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._resumed) + len(self._suspects) + sum(map(len, self._levels.values()))

    @property
    def has_text(self) -> bool:
        """True if a sequence without images may be among the candidates."""
        resumed = islice(chain(self._resumed.values(), self._suspects.values()), MAX_CANDIDATES)
        has_new = any(level.has_text for level in self._levels.values())
        return has_new or not all(sequence.request.spans for sequence in resumed)

    def push(self, sequence: Sequence) -> None:
        """Adds a new request behind all others of its kind."""
        if sequence.is_suspect:
            self._suspects[sequence.number] = sequence
        elif sequence.num_output_tokens:
            self._resumed[sequence.number] = sequence
        else:
            self._level_of(sequence.request.priority).push(sequence)

    def _level_of(self, priority: int) -> _Level:
        if (level := self._levels.get(priority)) is None:
            level = self._levels[priority] = _Level()
            insort(self._priorities, priority)
        return level

    def push_front(self, sequence: Sequence) -> None:
        """Adds a preempted sequence before all others. The newest is preempted first, so the oldest ends up first."""
        queue = self._suspects if sequence.is_suspect else self._resumed
        queue[sequence.number] = sequence
        queue.move_to_end(sequence.number, last=False)

    def set_aside(self, sequence: Sequence) -> None:
        """Adds a sequence that cannot start before an image of it is encoded."""
        self._awaiting_images[sequence.number] = sequence

    def take_back(self, sequence: Sequence) -> bool:
        """Removes a sequence that was set aside. False if it was not."""
        return self._awaiting_images.pop(sequence.number, None) is not None

    def remove(self, sequence: Sequence) -> None:
        """Removes a waiting sequence. Raises KeyError if it does not wait."""
        for queue in (self._resumed, self._suspects, self._awaiting_images):
            if queue.pop(sequence.number, None) is not None:
                return
        priority = sequence.request.priority
        level = self._levels[priority]
        level.remove(sequence)
        if not len(level):
            del self._levels[priority]
            self._priorities.remove(priority)

    def candidates(self) -> list[Sequence]:
        """The sequences that may start now, best first. None comes after one that was bypassed too often."""
        found: list[Sequence] = []
        suspect = islice(self._suspects.values(), 1)
        new = chain.from_iterable(self._levels[priority].in_order() for priority in self._priorities)
        for sequence in islice(chain(self._resumed.values(), suspect, new), MAX_CANDIDATES):
            found.append(sequence)
            if sequence.times_bypassed >= MAX_BYPASSES:
                break
        return found

    def pop(self, sequence: Sequence, bypassed: list[Sequence]) -> None:
        """Removes a candidate that starts, and counts it for the candidates before it that did not fit."""
        if level := self._levels.get(sequence.request.priority):
            level.count_start(sequence)
        self.remove(sequence)
        for other in bypassed:
            other.times_bypassed += 1


class _Level:
    """New requests of one priority."""

    def __init__(self) -> None:
        self._text: OrderedDict[int, Sequence] = OrderedDict()
        self._media: OrderedDict[int, Sequence] = OrderedDict()
        self._num_texts_before_media = 0
        """Later text requests that have started before the oldest of ``_media``."""

    def __len__(self) -> int:
        return len(self._text) + len(self._media)

    @property
    def has_text(self) -> bool:
        return bool(self._text)

    def push(self, sequence: Sequence) -> None:
        queue = self._media if sequence.request.spans else self._text
        queue[sequence.number] = sequence

    def remove(self, sequence: Sequence) -> None:
        """Raises KeyError if it is not here."""
        if sequence is self._oldest_media():
            self._num_texts_before_media = 0
        queue = self._media if sequence.request.spans else self._text
        del queue[sequence.number]

    def count_start(self, sequence: Sequence) -> None:
        """The sequence is about to start."""
        oldest = self._oldest_media()
        if oldest is not None and sequence.number in self._text and oldest.number < sequence.number:
            self._num_texts_before_media += 1

    def in_order(self) -> Iterable[Sequence]:
        text, media = self._text.values(), self._media.values()
        if self._num_texts_before_media < MAX_TEXTS_BEFORE_MEDIA:
            return chain(text, media)
        return chain(islice(media, 1), text, islice(media, 1, None))

    def _oldest_media(self) -> Sequence | None:
        return next(iter(self._media.values()), None)


class RunningSet:
    """The sequences that have one of the ``num_slots`` slots of the ranks' batch."""

    def __init__(self, num_slots: int) -> None:
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._freed_slots: list[int] = []
        self._num_prompt_only = 0
        self.sequences: list[Sequence] = []
        """Oldest first. The newest is preempted first."""

    @property
    def has_free_slot(self) -> bool:
        return bool(self._free_slots)

    @property
    def has_freed_slots(self) -> bool:
        """True if slots were freed that the ranks have not been told of."""
        return bool(self._freed_slots)

    def take_freed_slots(self) -> tuple[int, ...]:
        """Slots freed since the last call. The ranks must clear them before they are used again."""
        slots = tuple(self._freed_slots)
        self._freed_slots.clear()
        return slots

    def partition(self) -> tuple[list[Sequence], list[Sequence]]:
        """(decoding, prefilling): running sequences that compute their last token or the last ones, which came with a
        result, and those that compute their prompt.

        A sequence that ends with its prompt never decodes. Leaves out sequences that need no more steps: not running,
        complete once the plans in flight are done, or then in need of an image that is not encoded.
        """
        running = SequenceStatus.RUNNING
        active = [
            each
            for each in self.sequences
            if each.status is running
            and each.length < each.max_length
            and each.num_computed_tokens < each.num_ready_tokens
            and not each.has_draft
        ]
        decoding = [each for each in active if each.length - each.num_computed_tokens == 1 or each.num_unsent]
        if self._num_prompt_only:
            decoding = [each for each in decoding if not each.prompt_only]
        if len(decoding) == len(active):
            return decoding, []
        return decoding, [each for each in active if not _decodes(each)]

    def add(self, sequence: Sequence, block_table: BlockTable) -> None:
        """Starts the sequence in a free slot (at least one exists)."""
        sequence.start(self._free_slots.pop(), block_table)
        insort(self.sequences, sequence, key=_number)
        self._num_prompt_only += sequence.prompt_only

    def remove(self, sequence: Sequence) -> None:
        """Frees the slot of a sequence that no plan in flight computes."""
        del self.sequences[bisect_left(self.sequences, sequence.number, key=_number)]
        self._num_prompt_only -= sequence.prompt_only
        self._free_slots.append(sequence.slot)
        self._freed_slots.append(sequence.slot)


def _decodes(sequence: Sequence) -> bool:
    return (sequence.num_remaining_tokens == 1 or sequence.num_unsent > 0) and not sequence.prompt_only


def _number(sequence: Sequence) -> int:
    return sequence.number
