"""Which tokens the draft model has computed, by KV block."""

from __future__ import annotations

import numpy as np

from mmserve.messages.step import BlockCopy
from mmserve.model_backend.worker.drafting.draft_coverage import DraftCoverage

BLOCK_TOKENS = 4


def blocks(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


def computed(*numbers: int, end: int) -> DraftCoverage:
    """A sequence with these blocks, of which so many tokens are covered."""
    coverage = DraftCoverage(10, BLOCK_TOKENS)
    coverage.enter(numbers, 0, 0)
    coverage.cover(blocks(*numbers), 0, end)
    return coverage


def test_tokens_are_covered_once_they_are_computed() -> None:
    coverage = computed(7, 2, 5, end=6)
    assert coverage.num_tokens(blocks(7, 2, 5)) == 6
    coverage.cover(blocks(7, 2, 5), 6, 12)
    assert coverage.num_tokens(blocks(7, 2, 5)) == 12
    assert coverage.num_tokens(blocks()) == 0


def test_a_block_that_another_sequence_gets_is_not_covered() -> None:
    coverage = computed(7, 2, 5, end=12)
    coverage.enter((9, 2), 0, 0)
    assert coverage.num_tokens(blocks(9, 2)) == 0
    assert coverage.num_tokens(blocks(7, 2, 5)) == 4


def test_blocks_of_a_prefix_hit_stay_covered() -> None:
    coverage = computed(7, 2, 5, end=12)
    coverage.enter((7, 2, 8), 0, 8)
    assert coverage.num_tokens(blocks(7, 2, 8)) == 8
    coverage.enter((3,), 12, 12)
    assert coverage.num_tokens(blocks(7, 2, 8, 3)) == 8


def test_a_copy_covers_what_its_source_does() -> None:
    coverage = computed(7, 2, end=7)
    coverage.copy([BlockCopy(source=7, target=3, num_tokens=2), BlockCopy(source=2, target=4, num_tokens=4)])
    coverage.enter((7, 4, 6), 0, 7)
    assert coverage.num_tokens(blocks(7, 4, 6)) == 7
    assert coverage.num_tokens(blocks(3)) == 2
    coverage.clear([3])
    assert coverage.num_tokens(blocks(3)) == 0


def test_refused_tokens_are_not_covered() -> None:
    coverage = computed(7, 2, 5, end=11)
    coverage.truncate(blocks(7, 2, 5), 12)
    assert coverage.num_tokens(blocks(7, 2, 5)) == 11
    coverage.truncate(blocks(7, 2, 5), 6)
    assert coverage.num_tokens(blocks(7, 2, 5)) == 6
    coverage.cover(blocks(7, 2, 5), 6, 8)
    assert coverage.num_tokens(blocks(7, 2, 5)) == 8, "the last block has nothing left"
