"""Who is in which slot of the ranks' batch, oldest first. Knows no KV memory and no policy."""

from __future__ import annotations

from bisect import bisect_left, insort

from mmserve.router.kv_cache.manager import BlockTable
from mmserve.router.scheduler.sequence import Phase, Sequence


def _age(sequence: Sequence) -> int:
    return sequence.number


class RunningSet:
    """``num_slots`` slots."""

    def __init__(self, num_slots: int) -> None:
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._left_slots: list[int] = []
        self.sequences: list[Sequence] = []
        """Oldest first; the newest is the first to be preempted."""

    @property
    def has_room(self) -> bool:
        return bool(self._free_slots)

    def split(self) -> tuple[list[Sequence], list[Sequence]]:
        """Those of which only the last token is to be computed (they decode), and the others (they prefill). Whoever
        has ended, or will with what is in flight, needs no more steps."""
        running = Phase.RUNNING
        active = [each for each in self.sequences if each.phase is running and each.length < each.max_length]
        decoding = [each for each in active if each.length - each.planned == 1]
        if len(decoding) == len(active):
            return decoding, []
        return decoding, [each for each in active if each.length - each.planned != 1]

    @property
    def has_left_slots(self) -> bool:
        """Sequences have left since the ranks were last told."""
        return bool(self._left_slots)

    def take_left_slots(self) -> tuple[int, ...]:
        """Slots that were left since the last call: the ranks must forget what is there before a slot is used again."""
        slots = tuple(self._left_slots)
        self._left_slots.clear()
        return slots

    def enter(self, sequence: Sequence, holding: BlockTable, num_cached_tokens: int) -> None:
        """Give the sequence a slot; there is room."""
        sequence.run(self._free_slots.pop(), holding, num_cached_tokens)
        insort(self.sequences, sequence, key=_age)

    def leave(self, sequence: Sequence) -> None:
        """Take the slot back of a sequence that nothing in flight computes."""
        del self.sequences[bisect_left(self.sequences, sequence.number, key=_age)]
        self._free_slots.append(sequence.slot)
        self._left_slots.append(sequence.slot)
