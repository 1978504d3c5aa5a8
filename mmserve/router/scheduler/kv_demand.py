"""What the running sequences will still need of the KV cache, as far as can be foreseen.

Kept while they run. When somebody wants to enter, those are asked anew that were given blocks meanwhile, and all when
the expected length of an answer has changed. Knows no queue and gives no blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from mmserve.config.deployment import KV_BLOCK_TOKENS
from mmserve.router.kv_cache.manager import blocks_for
from mmserve.router.scheduler.kv_forecast import PeakKvEstimate
from mmserve.router.scheduler.sequence import Sequence

_FIRST_GUESS_TOKENS = 256.0
_MARGIN = 1.25
_TENTH = 10
"""Who has written more than was expected will write a tenth more."""
_WEIGHT = 1 / 32


class OutputLengths:
    """Running average of observed output lengths, for requests that only say how much would be too much."""

    def __init__(self) -> None:
        self._mean_tokens = _FIRST_GUESS_TOKENS
        self.expected_tokens = _expected(self._mean_tokens)
        """In whole blocks, so that it seldom changes."""

    def observe(self, num_tokens: int) -> None:
        """A sequence has ended by itself after this many output tokens."""
        self._mean_tokens += _WEIGHT * (num_tokens - self._mean_tokens)
        self.expected_tokens = _expected(self._mean_tokens)

    def final_length(self, sequence: Sequence) -> int:
        """Expected prompt plus output: never above the request's limit, exact when nothing can stop it earlier."""
        if not sequence.request.sampling.stop_token_ids:
            return sequence.max_length
        num_output = len(sequence.tokens) - sequence.num_prompt_tokens
        longer_tokens = num_output + num_output // _TENTH + 2
        total = self.expected_tokens if self.expected_tokens > longer_tokens else longer_tokens
        length = sequence.num_prompt_tokens + total
        return length if length < sequence.max_length else sequence.max_length


def _expected(mean_tokens: float) -> int:
    return max(1, math.ceil(_MARGIN * mean_tokens / KV_BLOCK_TOKENS)) * KV_BLOCK_TOKENS + 1


class KvDemandEstimator:
    """``num_blocks``: of the KV cache."""

    def __init__(self, num_blocks: int) -> None:
        self.outputs = OutputLengths()
        self._expected_tokens = self.outputs.expected_tokens
        """With which all of ``_needs`` were found."""
        self._forecast = PeakKvEstimate(num_blocks)
        self._needs: dict[Sequence, tuple[int, int]] = {}
        """Growth and held of each that runs, as the forecast has them."""
        self._grown: set[Sequence] = set()
        """Those that were given blocks since."""

    def entered(self, sequence: Sequence) -> None:
        """It has a slot and blocks now."""
        need = self._need(sequence)
        self._needs[sequence] = need
        self._forecast.add(*need)

    def grown(self, sequence: Sequence) -> None:
        """It was given blocks."""
        self._grown.add(sequence)

    def left(self, sequence: Sequence) -> None:
        """Its blocks are free."""
        self._grown.discard(sequence)
        self._forecast.remove(*self._needs.pop(sequence))

    def ended(self, sequence: Sequence) -> None:
        """It has its last token."""
        self.outputs.observe(sequence.num_output_tokens)

    def fits(self, sequence: Sequence, *, num_hit: int, shared: int, num_held: int) -> bool:
        """May it enter? ``num_hit``: its blocks that are cached, ``shared``: those of them that nobody holds yet,
        ``num_held``: blocks that are held now by anyone."""
        if self._expected_tokens != self.outputs.expected_tokens:
            self._foresee(list(self._needs))
        elif self._grown:
            self._foresee(self._grown)
        num_blocks = blocks_for(len(sequence.tokens))
        growth = blocks_for(self.outputs.final_length(sequence)) - num_blocks
        return self._forecast.fits(growth, num_blocks - num_hit, num_held - self._forecast.held + shared)

    def _foresee(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self._forecast.remove(*self._needs[sequence])
            self.entered(sequence)
        self._grown.clear()
        self._expected_tokens = self.outputs.expected_tokens

    def _need(self, sequence: Sequence) -> tuple[int, int]:
        holding = sequence.holding
        assert holding is not None
        num_blocks = len(holding.blocks)
        growth = blocks_for(self.outputs.final_length(sequence)) - num_blocks
        return growth if growth > 0 else 0, num_blocks - holding.num_hit_blocks
