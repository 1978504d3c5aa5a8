from __future__ import annotations

from array import array

from mmserve.router.kv_cache.manager import BlockTable, KvCacheManager, PrefixMatch

BLOCK_TOKENS = 16
TOKENS = array("q", range(100))
NO_MATCH = PrefixMatch([])


def computed(kv: KvCacheManager, tokens: array[int], salt: str = "", *, num_computed: int | None = None) -> BlockTable:
    """Blocks of a sequence that has computed its tokens."""
    table = kv.allocate(len(tokens), kv.match_prefix(tokens, salt))
    assert table is not None
    kv.cache_full_blocks(table, tokens, len(tokens) if num_computed is None else num_computed)
    return table


def test_blocks_for_rounds_up() -> None:
    assert [KvCacheManager(1, BLOCK_TOKENS).blocks_for(count) for count in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_freed_blocks_are_cached_if_full_and_free_otherwise() -> None:
    kv = KvCacheManager(8, BLOCK_TOKENS)
    table = computed(kv, TOKENS)
    assert (kv.num_used, kv.num_free, kv.num_cached) == (7, 1, 0)
    kv.free(table)
    assert (kv.num_used, kv.num_free, kv.num_cached) == (0, 2, 6), "full blocks stay cached, the seventh is not full"


def test_a_match_leaves_one_token_to_compute() -> None:
    kv = KvCacheManager(8, BLOCK_TOKENS)
    kv.free(computed(kv, TOKENS))
    assert len(kv.match_prefix(TOKENS).nodes) == 6
    assert len(kv.match_prefix(TOKENS[:97]).nodes) == 6
    assert len(kv.match_prefix(TOKENS[:96]).nodes) == 5
    assert len(kv.match_prefix(TOKENS[:1]).nodes) == 0


def test_only_cached_full_blocks_are_matched() -> None:
    kv = KvCacheManager(8, BLOCK_TOKENS)
    table = computed(kv, TOKENS, num_computed=40)
    assert [node.block for node in kv.match_prefix(TOKENS).nodes] == table.blocks[:2]
    kv.cache_full_blocks(table, TOKENS, 64)
    assert [node.block for node in kv.match_prefix(TOKENS).nodes] == table.blocks[:4]


def test_sequences_share_the_blocks_of_a_cached_prefix() -> None:
    kv = KvCacheManager(10, BLOCK_TOKENS)
    first = computed(kv, TOKENS)
    second = kv.allocate(len(TOKENS), kv.match_prefix(TOKENS))
    assert second is not None
    assert second.blocks[:6] == first.blocks[:6]
    assert second.blocks[6] != first.blocks[6]
    assert kv.num_used == 8
    kv.free(first)
    assert (kv.num_used, kv.num_cached) == (7, 0), "the second still uses the prefix"
    kv.free(second)
    assert kv.num_cached == 6


def test_allocation_evicts_cached_blocks_but_not_the_matched_ones() -> None:
    kv = KvCacheManager(8, BLOCK_TOKENS)
    kv.free(computed(kv, TOKENS))
    match = kv.match_prefix(TOKENS[:49])
    assert len(match.nodes) == 3
    assert kv.allocate(16 * 9, match) is None, "only five more blocks are available, not six"
    table = kv.allocate(16 * 8, match)
    assert table is not None
    assert sorted(table.blocks) == list(range(8))


def test_extend_allocates_blocks_only_when_needed() -> None:
    kv = KvCacheManager(3, BLOCK_TOKENS)
    table = kv.allocate(16, NO_MATCH)
    assert table is not None
    assert kv.extend(table, 16) == ()
    assert len(kv.extend(table, 33) or ()) == 2
    assert kv.extend(table, 49) is None
    assert kv.extend(table, 48) == ()


def test_the_second_sequence_to_compute_the_same_tokens_keeps_private_blocks() -> None:
    kv = KvCacheManager(16, BLOCK_TOKENS)
    first, second = kv.allocate(100, NO_MATCH), kv.allocate(100, NO_MATCH)
    assert first is not None
    assert second is not None
    for table in (first, second):
        kv.cache_full_blocks(table, TOKENS, 100)
    assert [node.block for node in kv.match_prefix(TOKENS).nodes] == first.blocks[:6]
    kv.free(second)
    assert (kv.num_used, kv.num_free) == (7, 9), "the private blocks are freed, not cached"
    kv.free(first)
    assert (kv.num_used, kv.num_cached) == (0, 6)


def test_blocks_of_a_failed_sequence_are_not_cached() -> None:
    kv = KvCacheManager(16, BLOCK_TOKENS)
    kv.free(computed(kv, TOKENS[:40]))
    failed = computed(kv, TOKENS)
    kv.discard_computed(failed)
    assert len(kv.match_prefix(TOKENS).nodes) == 2, "blocks that another sequence has computed stay"
    kv.free(failed)
    assert (kv.num_free, kv.num_cached) == (14, 2)


def test_blocks_of_a_failed_sequence_that_others_use_stay_cached() -> None:
    kv = KvCacheManager(16, BLOCK_TOKENS)
    failed = computed(kv, TOKENS)
    other = kv.allocate(50, kv.match_prefix(TOKENS[:50]))
    assert other is not None
    kv.discard_computed(failed)
    kv.free(failed)
    assert len(kv.match_prefix(TOKENS).nodes) == 3
    kv.free(other)
    assert kv.num_used == 0


def test_blocks_cached_before_they_are_computed_are_invalidated_if_the_step_fails() -> None:
    kv = KvCacheManager(16, BLOCK_TOKENS)
    leader = kv.allocate(100, NO_MATCH)
    assert leader is not None
    first = kv.cache_full_blocks(leader, TOKENS, 40)
    assert first is not None
    assert first.block == leader.blocks[0]
    assert kv.cache_full_blocks(leader, TOKENS, 47) is None, "no further full block"
    follower = kv.allocate(50, kv.match_prefix(TOKENS[:50]))
    assert follower is not None
    kv.cache_full_blocks(follower, TOKENS, 50)
    assert not kv.uses_invalid_block(follower)
    kv.invalidate(first)
    assert kv.uses_invalid_block(follower)
    assert not kv.uses_invalid_block(leader), "it had no prefix hit"
    assert kv.match_prefix(TOKENS) == NO_MATCH, "blocks computed from an invalid one are invalidated too"
    for table in (leader, follower):
        kv.free(table)
    assert (kv.num_free, kv.num_cached) == (16, 0)


def test_invalidating_freed_blocks_makes_them_free() -> None:
    kv = KvCacheManager(16, BLOCK_TOKENS)
    table = computed(kv, TOKENS, num_computed=32)
    first = kv.cache_full_blocks(table, TOKENS, 96)
    assert first is not None
    kv.free(table)
    kv.invalidate(first)
    kv.invalidate(first)
    assert (kv.num_free, kv.num_cached) == (14, 2)
    assert len(kv.match_prefix(TOKENS).nodes) == 2


def test_equal_tokens_within_a_block_are_copied_from_a_freed_block() -> None:
    kv = KvCacheManager(16, BLOCK_TOKENS)
    first = computed(kv, TOKENS)
    similar = TOKENS[:40] + array("q", [7] * 20)
    assert kv.match_prefix(similar).num_copied_tokens == 0, "a block in use may not be computed yet"
    third = first.blocks[2]
    kv.free(first)
    match = kv.match_prefix(similar)
    assert (len(match.nodes), match.copy_source, match.num_copied_tokens) == (2, third, 8)
    table = kv.allocate(len(similar), match)
    assert table is not None
    assert (table.prefix_hit.num_tokens, kv.num_used) == (40, 4), "the source of the copy is not referenced"
    assert kv.match_prefix(TOKENS[:40]).num_copied_tokens == 7, "one token is left to compute"


def test_nothing_is_copied_from_an_evicted_block() -> None:
    kv = KvCacheManager(7, BLOCK_TOKENS)
    kv.free(computed(kv, TOKENS))
    assert kv.match_prefix(TOKENS[:20]).num_copied_tokens == 3
    other = kv.allocate(16 * 6, NO_MATCH)
    assert other is not None
    assert kv.match_prefix(TOKENS[:20]) == kv.match_prefix(TOKENS[:17]), "only the first block is left"


def ended(kv: KvCacheManager, tokens: array[int], salt: str = "") -> BlockTable:
    """The former blocks of a sequence that has computed its tokens and ended."""
    table = computed(kv, tokens, salt)
    kv.cache_partial_block(table, tokens, len(tokens))
    kv.free(table)
    return table


def test_the_partial_last_block_of_a_sequence_can_be_copied_from() -> None:
    kv = KvCacheManager(16, BLOCK_TOKENS)
    ended(kv, TOKENS)
    assert (kv.num_used, kv.num_cached) == (0, 7)
    longer = TOKENS + array("q", [7] * 20)
    match = kv.match_prefix(longer)
    assert (len(match.nodes), match.num_copied_tokens, match.num_tokens) == (6, 4, 100)
    table = kv.allocate(len(longer), match)
    assert table is not None
    assert match.copy_source not in table.blocks, "the new sequence writes into its own block"
    short = array("q", [5, 6, 7])
    ended(kv, short)
    assert kv.match_prefix(array("q", [5, 6, 8])).num_copied_tokens == 2, "in the first block as well"


def test_a_partial_block_is_replaced_by_the_next_one_with_the_same_first_token() -> None:
    kv = KvCacheManager(16, BLOCK_TOKENS)
    for last in range(5):
        ended(kv, TOKENS[:98] + array("q", [last]))
        assert kv.num_cached == 7
    assert kv.match_prefix(TOKENS[:98] + array("q", [4, 0])).num_copied_tokens == 3
    ended(kv, TOKENS[:98] + array("q", [4] * 14))
    assert kv.num_cached == 7, "a full block has replaced it"
    ended(kv, TOKENS[:96] + array("q", [8]))
    assert kv.num_cached == 8, "a block with another first token is cached beside it"


def test_partial_blocks_that_may_be_wrong_are_not_cached() -> None:
    kv = KvCacheManager(16, BLOCK_TOKENS)
    failed = computed(kv, TOKENS)
    kv.discard_computed(failed)
    kv.cache_partial_block(failed, TOKENS, 100)
    kv.free(failed)
    leader = kv.allocate(40, NO_MATCH)
    assert leader is not None
    first = kv.cache_full_blocks(leader, TOKENS, 40)
    follower = kv.allocate(40, kv.match_prefix(TOKENS[:40]))
    assert first is not None
    assert follower is not None
    kv.invalidate(first)
    for table in (follower, leader):
        kv.cache_partial_block(table, TOKENS, 40)
        kv.free(table)
    assert (kv.num_free, kv.num_cached) == (16, 0)


def test_nothing_is_shared_or_copied_between_salts() -> None:
    kv = KvCacheManager(32, BLOCK_TOKENS)
    ended(kv, TOKENS, "a")
    for salt in ("", "b"):
        assert kv.match_prefix(TOKENS, salt) == PrefixMatch([], salt=salt)
        ended(kv, TOKENS, salt)
    assert kv.num_cached == 3 * 7
    blocks = set()
    for salt in ("", "a", "b"):
        match = kv.match_prefix(TOKENS, salt)
        assert (len(match.nodes), match.num_copied_tokens) == (6, 3)
        blocks |= {match.copy_source, *(node.block for node in match.nodes)}
    assert len(blocks) == 3 * 7


def test_a_salt_is_forgotten_with_its_last_block() -> None:
    kv = KvCacheManager(8, BLOCK_TOKENS)
    for number in range(20):
        ended(kv, TOKENS[: 16 * 4], f"salt {number}")
    assert list(kv._tree._salted_roots) == [b"salt 18", b"salt 19"]
    table = computed(kv, TOKENS[:64], "salt 19")
    kv.free(computed(kv, TOKENS[:64]))
    assert list(kv._tree._salted_roots) == [b"salt 19"], "the other one's blocks were the least recently used"
    kv.discard_computed(table)
    assert len(kv.match_prefix(TOKENS, "salt 19").nodes) == 3, "only what it had found is left"
