from __future__ import annotations

import pytest

from mmserve.router.kv_cache.block_pool import BlockPool


def test_blocks_go_out_once_and_come_back() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(3)
    assert len(set(blocks)) == 3
    assert pool.num_free == 1
    assert pool.let_go(blocks[0])
    assert pool.num_free == 1, "nobody's, but not free before it is reclaimed"
    pool.reclaim(blocks[0])
    assert pool.num_free == 2
    assert blocks[0] in pool.allocate(2)


def test_only_the_last_holder_gives_a_block_up() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    assert not pool.hold(block)
    assert not pool.let_go(block)
    assert pool.let_go(block)
    assert pool.hold(block), "held again out of the cache"


def test_wrong_use_is_our_bug() -> None:
    pool = BlockPool(1)
    (block,) = pool.allocate(1)
    with pytest.raises(AssertionError):
        pool.allocate(1)
    with pytest.raises(AssertionError):
        pool.reclaim(block)
    pool.let_go(block)
    with pytest.raises(AssertionError):
        pool.let_go(block)
