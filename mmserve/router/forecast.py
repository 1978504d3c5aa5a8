"""Will the KV cache still suffice if one more sequence enters? A forecast from expected output lengths.

The method is the Efficient Router of LightLLM (github.com/ModelTC/lightllm, ``server/router/req_queue``; also
"Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS 2025). Credit for prefix-cache hits is new.
Knows no queue and no blocks by id. A forecast may be wrong: then the scheduler preempts.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from operator import ge

from mmserve.router.sequence import Sequence

_FIRST_GUESS_TOKENS = 256.0
_FLOOR_TOKENS = 16.0
_MARGIN = 1.25
_LONGER_THAN_NOW = 1.1
_WEIGHT = 1 / 32


class OutputLengths:
    """Running average of observed output lengths, for requests that only say how much would be too much."""

    def __init__(self) -> None:
        self._mean_tokens = _FIRST_GUESS_TOKENS
        self._expected_tokens = _expected(self._mean_tokens)

    def observe(self, num_tokens: int) -> None:
        """A sequence has ended by itself after this many output tokens."""
        self._mean_tokens += _WEIGHT * (num_tokens - self._mean_tokens)
        self._expected_tokens = _expected(self._mean_tokens)

    def final_length(self, sequence: Sequence) -> int:
        """Expected prompt plus output: never above the request's limit, exact when nothing can stop it earlier."""
        if not sequence.request.sampling.stop_token_ids:
            return sequence.max_length
        longer_tokens = math.ceil(_LONGER_THAN_NOW * (len(sequence.tokens) - sequence.num_prompt_tokens)) + 1
        total = self._expected_tokens if self._expected_tokens > longer_tokens else longer_tokens
        length = sequence.num_prompt_tokens + total
        return length if length < sequence.max_length else sequence.max_length


def _expected(mean_tokens: float) -> int:
    return math.ceil(max(_MARGIN * mean_tokens, _FLOOR_TOKENS)) + 1


def _shortness(entry: tuple[int, int]) -> int:
    return -entry[0]


class KvForecast:
    """Peak of KV use in blocks, given what each sequence holds for itself now and will still add.

    Sequences end in the order of what they add. Just before the i-th longest ends, the i longest are there and
    each has grown by what that one adds (growth_i), so the peak is

        shared + max over i of (i * growth_i + sum over j <= i of held_j),  sorted by growth, longest first.
    """

    def __init__(self, num_blocks: int, shared: int, sequences: list[tuple[int, int]]) -> None:
        """``shared``: blocks held by several sequences; ``sequences``: (growth, held) of the running ones."""
        self._num_blocks = num_blocks
        self._shared = shared
        self._longest_first = sorted(sequences, reverse=True)
        self._refused: tuple[int, int, int] | None = None

    def fits(self, *, growth: int, held: int, shared: int) -> bool:
        """Does the peak stay within the cache with one more? ``shared``: cached blocks that it makes busy.

        The peak only rises with entries, so what needs no less than one that did not fit does not fit either.
        """
        if self._refused and all(map(ge, (growth, held, shared), self._refused)):
            return False
        index = bisect_left(self._longest_first, -growth, key=_shortness)
        self._longest_first.insert(index, (growth, held))
        peak = self._shared + shared + self._peak()
        del self._longest_first[index]
        if peak > self._num_blocks:
            self._refused = growth, held, shared
        return peak <= self._num_blocks

    def add(self, *, growth: int, held: int, shared: int) -> None:
        """The sequence has entered."""
        insort(self._longest_first, (growth, held), key=_shortness)
        self._shared += shared

    def _peak(self) -> int:
        peak = held_by_longer = 0
        for count, (growth, held) in enumerate(self._longest_first, start=1):
            held_by_longer += held
            now = held_by_longer + growth * count
            if now > peak:
                peak = now
        return peak
