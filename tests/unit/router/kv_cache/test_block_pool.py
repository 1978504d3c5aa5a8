from __future__ import annotations

import pytest

from mmserve.router.kv_cache.block_pool import BlockPool


def test_allocated_blocks_are_distinct_and_reclaimed_blocks_are_free_again() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    assert len(set(blocks)) == 3
    assert pool.num_free == 1
    assert pool.decref(blocks[0])
    assert pool.num_free == 1, "unreferenced, but not free before it is reclaimed"
    pool.reclaim(blocks[0])
    assert pool.num_free == 2
    assert blocks[0] in pool.allocate(2)


def test_incref_and_decref_report_the_first_and_last_reference() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    assert not pool.incref(block)
    assert not pool.decref(block)
    assert pool.decref(block)
    assert pool.incref(block), "in use again, out of the cache"


def test_wrong_use_fails_an_assertion() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    with pytest.raises(AssertionError):
        pool.allocate(1)
    with pytest.raises(AssertionError):
        pool.reclaim(block)
    pool.decref(block)
    with pytest.raises(AssertionError):
        pool.decref(block)
