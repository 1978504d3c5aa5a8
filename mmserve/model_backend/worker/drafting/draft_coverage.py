"""Which tokens have keys and values of the draft model, by KV block.

The draft model's cache has the same blocks as the served model's, and tokens lie at the same places. But it computes a
sequence only when drafts for it are wanted, so a block may lack some of its last tokens, or all. A block's tokens do
not change while sequences use it, so what is known of a block holds for all sequences that share it, and a sequence
that is resumed finds what was computed of it. Pure: numpy, no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mmserve.messages.step import BlockCopy
from mmserve.model_backend.worker.input_batch import Int64s


class DraftCoverage:
    """Of each block: how many of its first tokens are covered."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self._covered: Int64s = np.zeros(num_blocks, dtype=np.int64)
        self._block_tokens = block_tokens

    def clear(self, blocks: Sequence[int]) -> None:
        """None of the blocks' tokens are covered."""
        self._covered[list(blocks)] = 0

    def copy(self, copies: Sequence[BlockCopy]) -> None:
        """The keys and values of these tokens were copied."""
        covered = [min(copy.num_tokens, int(self._covered[copy.source])) for copy in copies]
        self._covered[[copy.target for copy in copies]] = covered

    def enter(self, blocks: Sequence[int], first_position: int, start: int) -> None:
        """A sequence that computes its tokens from ``start`` on got blocks, for tokens from ``first_position`` on.

        Blocks with tokens before ``start`` come from the prefix cache.
        """
        num_known = max(0, -(-(start - first_position) // self._block_tokens))
        self.clear(blocks[num_known:])

    def num_tokens(self, blocks: Int64s) -> int:
        """How many of the first tokens of the sequence with these blocks are covered."""
        partial = np.flatnonzero(self._covered[blocks] < self._block_tokens)
        if not len(partial):
            return len(blocks) * self._block_tokens
        first = int(partial[0])
        return first * self._block_tokens + int(self._covered[blocks[first]])

    def cover(self, blocks: Int64s, start: int, end: int) -> None:
        """The tokens from ``start`` to ``end`` of the sequence with these blocks were computed, as all before were."""
        for index in range(start // self._block_tokens, -(-end // self._block_tokens)):
            self._covered[blocks[index]] = min(self._block_tokens, end - index * self._block_tokens)

    def truncate(self, blocks: Int64s, length: int) -> None:
        """Tokens of the sequence from ``length`` on turned out to be others."""
        for index in range(length // self._block_tokens, len(blocks)):
            most = max(0, length - index * self._block_tokens)
            self._covered[blocks[index]] = min(most, int(self._covered[blocks[index]]))
