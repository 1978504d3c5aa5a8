"""Which KV blocks are free and how many sequences hold each of the others.

Knows no tokens and no prefix tree: a block that nobody holds stays out of the free list until it is reclaimed.
"""

from __future__ import annotations


class BlockPool:
    """Block ids 0 .. num_blocks - 1, each free or held by zero or more sequences."""

    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks - 1, -1, -1))
        self._holders = [0] * num_blocks

    @property
    def num_blocks(self) -> int:
        return len(self._holders)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def holders(self, block: int) -> int:
        """How many sequences hold the block."""
        return self._holders[block]

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` (at most num_free) blocks out of the free list, each with one holder."""
        assert count <= len(self._free), "the ledger evicts before it allocates"
        end = len(self._free) - count
        blocks = self._free[end:]
        del self._free[end:]
        for block in blocks:
            self._holders[block] = 1
        return blocks

    def hold(self, block: int) -> bool:
        """One more holder; True when it is the first."""
        self._holders[block] += 1
        return self._holders[block] == 1

    def let_go(self, block: int) -> bool:
        """One holder less; True when it was the last."""
        assert self._holders[block] > 0, f"block {block} has no holder"
        self._holders[block] -= 1
        return self._holders[block] == 0

    def reclaim(self, block: int) -> None:
        """Put a block without holders back into the free list."""
        assert self._holders[block] == 0, f"block {block} is still held"
        self._free.append(block)
