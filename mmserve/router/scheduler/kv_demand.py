"""Estimates what the running sequences will need of the KV cache until they end.

The method is the Efficient Router of LightLLM (github.com/ModelTC/lightllm, ``server/router/req_queue``; also
"Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025). Credit for prefix-cache hits is an addition.
Estimates may be too low; then the scheduler preempts. Pure: no clock, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import ge

from mmserve.router.kv_cache.manager import KvCacheManager
from mmserve.router.scheduler.sequence import Sequence

_INITIAL_OUTPUT_TOKENS = 256.0
"""Assumed mean output length before any answer has ended."""
_LENGTH_MARGIN = 1.25
_OVERRUN_DIVISOR = 10
"""A sequence that is longer than expected is assumed to grow by another tenth."""
_LENGTH_WEIGHT = 1 / 32


class OutputLengths:
    """Expected output length of requests that only give an upper limit: a moving average of observed lengths."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._mean_tokens = _INITIAL_OUTPUT_TOKENS
        self.expected_tokens = self._expected()
        """In whole blocks, so that it changes rarely."""

    def observe(self, num_tokens: int) -> None:
        """Records the output length of a sequence that ended by itself."""
        self._mean_tokens += _LENGTH_WEIGHT * (num_tokens - self._mean_tokens)
        self.expected_tokens = self._expected()

    def final_length(self, sequence: Sequence) -> int:
        """Expected prompt plus output tokens: at most the request's limit, and exactly that if no token can stop it."""
        if sequence.prompt_only:
            return sequence.num_prompt_tokens
        if not sequence.ending_token_ids:
            return sequence.max_length
        num_output = len(sequence.tokens) - sequence.num_prompt_tokens
        overrun_tokens = num_output + num_output // _OVERRUN_DIVISOR + 2
        total = self.expected_tokens if self.expected_tokens > overrun_tokens else overrun_tokens
        length = sequence.num_prompt_tokens + total
        return length if length < sequence.max_length else sequence.max_length

    def _expected(self) -> int:
        return max(1, math.ceil(_LENGTH_MARGIN * self._mean_tokens / self._block_tokens)) * self._block_tokens + 1


class KvDemandEstimator:
    """What each running sequence will still need of the KV cache.

    Estimates are kept between calls. ``fits`` recomputes those of sequences that got new blocks, and all of them if the
    expected output length changed.
    """

    def __init__(self, kv: KvCacheManager) -> None:
        self._kv = kv
        self.output_lengths = OutputLengths(kv.block_tokens)
        self._expected_tokens = self.output_lengths.expected_tokens
        """The expected output length that all of ``_demands`` were computed with."""
        self._peak = PeakKvEstimate(kv.num_blocks)
        self._demands: dict[Sequence, tuple[int, int]] = {}
        """(growth, private blocks) of each running sequence, as added to ``_peak``."""
        self._grown: set[Sequence] = set()
        """Sequences that got blocks since their estimate."""

    def add(self, sequence: Sequence) -> None:
        """The sequence has started."""
        demand = self._demand(sequence)
        self._demands[sequence] = demand
        self._peak.add(*demand)

    def mark_grown(self, sequence: Sequence) -> None:
        """The sequence got more blocks."""
        self._grown.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """The sequence's blocks are about to be freed."""
        self._grown.discard(sequence)
        self._peak.remove(*self._demands.pop(sequence))

    def observe_output(self, sequence: Sequence) -> None:
        """The sequence ended by itself."""
        self.output_lengths.observe(sequence.num_output_tokens)

    def fits(self, sequence: Sequence, *, num_hit_blocks: int, num_used: int) -> bool:
        """True if the peak stays within the cache when this sequence starts too.

        ``num_hit_blocks``: its blocks that are cached. ``num_used``: used blocks, including those that the sequence
        would take into use from the cache.
        """
        if self._expected_tokens != self.output_lengths.expected_tokens:
            self._update(list(self._demands))
        elif self._grown:
            self._update(self._grown)
        num_blocks = self._kv.blocks_for(len(sequence.tokens))
        growth = self._kv.blocks_for(self.output_lengths.final_length(sequence)) - num_blocks
        return self._peak.fits(growth, num_blocks - num_hit_blocks, num_used - self._peak.num_private)

    def _update(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self._peak.remove(*self._demands[sequence])
            self.add(sequence)
        self._grown.clear()
        self._expected_tokens = self.output_lengths.expected_tokens

    def _demand(self, sequence: Sequence) -> tuple[int, int]:
        block_table = sequence.block_table
        assert block_table is not None
        num_blocks = len(block_table.blocks)
        growth = self._kv.blocks_for(self.output_lengths.final_length(sequence)) - num_blocks
        return growth if growth > 0 else 0, num_blocks - block_table.num_hit_blocks


class PeakKvEstimate:
    """Peak number of blocks in use, from each sequence's private blocks and the blocks that it will still add (growth).

    Sequences end in the order of their growth. Just before the i-th longest ends, the i longest are running, and each
    has grown by growth_i, so the peak is

        shared + max over i of (i * growth_i + sum over j <= i of private_j),  sorted by growth, longest first.

    Of sequences with equal growth only the last one matters, so they are kept as one group. ``fits`` costs as much as
    there are groups, which are few; ``add`` and ``remove`` take constant time.
    """

    def __init__(self, num_blocks: int) -> None:
        self._num_blocks = num_blocks
        self._groups: dict[int, list[int]] = {}
        """Growth -> [number of sequences, their private blocks]."""
        self._refused: tuple[int, int, int] | None = None

    @property
    def num_private(self) -> int:
        """Private blocks of all sequences."""
        return sum(private for _, private in self._groups.values())

    def add(self, growth: int, private: int) -> None:
        """Adds a sequence that has ``private`` blocks and will add ``growth``."""
        self._refused = None
        if group := self._groups.get(growth):
            group[0] += 1
            group[1] += private
        else:
            self._groups[growth] = [1, private]

    def remove(self, growth: int, private: int) -> None:
        """Removes a sequence that was added with these numbers."""
        self._refused = None
        group = self._groups[growth]
        group[0] -= 1
        group[1] -= private
        if not group[0]:
            del self._groups[growth]

    def fits(self, growth: int, private: int, shared: int) -> bool:
        """True if the peak with one more sequence stays within the cache. ``shared``: used blocks that are not private
        to a sequence.

        The peak only rises with more sequences, so a sequence that needs at least as much as a refused one is refused.
        """
        if self._refused and all(map(ge, (growth, private, shared), self._refused)):
            return False
        if shared + self._with(growth, private) <= self._num_blocks:
            return True
        self._refused = growth, private, shared
        return False

    def _with(self, growth: int, private: int) -> int:
        """The peak of private blocks with one more sequence."""
        peak = num_longer = private_of_longer = 0
        for each, (count, blocks) in sorted([*self._groups.items(), (growth, [1, private])], reverse=True):
            num_longer += count
            private_of_longer += blocks
            peak = max(peak, private_of_longer + each * num_longer)
        return peak
