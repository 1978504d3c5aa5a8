"""Free list and reference counts of the KV blocks. Pure: no clock, no I/O."""

from __future__ import annotations


class BlockPool:
    """Block ids 0 .. num_blocks - 1. A block is free, or allocated with a reference count.

    An allocated block whose count falls to 0 is not free until ``reclaim``: the prefix cache may keep its contents.
    """

    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks - 1, -1, -1))
        self._ref_counts = [0] * num_blocks

    @property
    def num_blocks(self) -> int:
        return len(self._ref_counts)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def ref_count(self, block: int) -> int:
        """Number of sequences that use the block."""
        return self._ref_counts[block]

    def allocate(self, count: int) -> list[int]:
        """Takes ``count`` blocks (at most ``num_free``) off the free list, each with one reference."""
        assert count <= len(self._free), "the manager evicts before it allocates"
        end = len(self._free) - count
        blocks = self._free[end:]
        del self._free[end:]
        for block in blocks:
            self._ref_counts[block] = 1
        return blocks

    def incref(self, block: int) -> bool:
        """Adds a reference. True if the block had none."""
        self._ref_counts[block] += 1
        return self._ref_counts[block] == 1

    def decref(self, block: int) -> bool:
        """Removes a reference. True if it was the last one."""
        assert self._ref_counts[block] > 0, f"block {block} has no reference"
        self._ref_counts[block] -= 1
        return self._ref_counts[block] == 0

    def reclaim(self, block: int) -> None:
        """Puts a block without references back on the free list."""
        assert self._ref_counts[block] == 0, f"block {block} is still in use"
        self._free.append(block)
