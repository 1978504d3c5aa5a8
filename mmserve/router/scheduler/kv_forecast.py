"""Will the KV cache still suffice if one more sequence enters? A forecast from expected output lengths.

The method is the Efficient Router of LightLLM (github.com/ModelTC/lightllm, ``server/router/req_queue``; also
"Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025). Credit for prefix-cache hits is new.
Knows no queue, no sequences and no blocks by id. A forecast may be wrong: then the scheduler preempts.
"""

from __future__ import annotations

from operator import ge


class PeakKvEstimate:
    """Peak of KV use in blocks, given what each sequence holds for itself now and will still add.

    Sequences end in the order of what they add. Just before the i-th longest ends, the i longest are there and
    each has grown by what that one adds (growth_i), so the peak is

        shared + max over i of (i * growth_i + sum over j <= i of held_j),  sorted by growth, longest first.

    Of those that add the same only the last counts, so they are kept together: asking costs as much as there are
    different growths, which are few, and a change costs the same however many sequences there are.
    """

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._alike: dict[int, list[int]] = {}
        """By growth: how many sequences, and what they hold together."""
        self._refused: tuple[int, int, int] | None = None

    @property
    def held(self) -> int:
        """What all sequences hold for themselves."""
        return sum(held for _, held in self._alike.values())

    def add(self, growth: int, held: int) -> None:
        """One more sequence that holds ``held`` blocks and will add ``growth``."""
        self._refused = None
        if alike := self._alike.get(growth):
            alike[0] += 1
            alike[1] += held
        else:
            self._alike[growth] = [1, held]

    def remove(self, growth: int, held: int) -> None:
        """One that was added has changed or left."""
        self._refused = None
        alike = self._alike[growth]
        alike[0] -= 1
        alike[1] -= held
        if not alike[0]:
            del self._alike[growth]

    def fits(self, growth: int, held: int, shared: int) -> bool:
        """Does the peak stay within the cache with one more? ``shared``: blocks that are held by several or for none
        of those that were added, with what the one more makes busy of cached ones.

        The peak only rises with entries, so what needs no less than one that did not fit does not fit either.
        """
        if self._refused and all(map(ge, (growth, held, shared), self._refused)):
            return False
        if shared + self._peak(growth, held) <= self._num_blocks:
            return True
        self._refused = growth, held, shared
        return False

    def _peak(self, growth: int, held: int) -> int:
        """With one more."""
        peak = count = held_by_longer = 0
        for each, alike in sorted([*self._alike.items(), (growth, [1, held])], reverse=True):
            count += alike[0]
            held_by_longer += alike[1]
            peak = max(peak, held_by_longer + each * count)
        return peak
