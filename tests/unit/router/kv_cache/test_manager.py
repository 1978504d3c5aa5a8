from __future__ import annotations

from array import array

from mmserve.router.kv_cache.manager import BlockTable, KvCacheManager, Match, blocks_for

TOKENS = array("q", range(100))
NOTHING = Match([])


def computed(kv: KvCacheManager, tokens: array[int], num_computed: int | None = None) -> BlockTable:
    """A sequence that has computed its tokens."""
    holding = kv.reserve(len(tokens), kv.match(tokens))
    assert holding is not None
    kv.publish(holding, tokens, len(tokens) if num_computed is None else num_computed)
    return holding


def test_blocks_are_rounded_up() -> None:
    assert [blocks_for(count) for count in (0, 1, 16, 17)] == [0, 1, 1, 2]


def test_a_sequence_takes_blocks_and_gives_all_back() -> None:
    kv = KvCacheManager(8)
    holding = computed(kv, TOKENS)
    assert (kv.num_held, kv.num_free, kv.num_cached) == (7, 1, 0)
    kv.free(holding)
    assert (kv.num_held, kv.num_free, kv.num_cached) == (0, 2, 6), "whole blocks stay cached, the seventh is not full"


def test_a_match_leaves_one_token_to_compute() -> None:
    kv = KvCacheManager(8)
    kv.free(computed(kv, TOKENS))
    assert len(kv.match(TOKENS).nodes) == 6
    assert len(kv.match(TOKENS[:97]).nodes) == 6
    assert len(kv.match(TOKENS[:96]).nodes) == 5
    assert len(kv.match(TOKENS[:1]).nodes) == 0


def test_only_computed_blocks_can_be_matched() -> None:
    kv = KvCacheManager(8)
    holding = computed(kv, TOKENS, num_computed=40)
    assert [node.block for node in kv.match(TOKENS).nodes] == holding.blocks[:2]
    kv.publish(holding, TOKENS, 64)
    assert [node.block for node in kv.match(TOKENS).nodes] == holding.blocks[:4]


def test_a_running_sequence_shares_its_prefix() -> None:
    kv = KvCacheManager(10)
    first = computed(kv, TOKENS)
    second = kv.reserve(len(TOKENS), kv.match(TOKENS))
    assert second is not None
    assert second.blocks[:6] == first.blocks[:6]
    assert second.blocks[6] != first.blocks[6]
    assert kv.num_held == 8
    kv.free(first)
    assert (kv.num_held, kv.num_cached) == (7, 0), "the second still holds the prefix"
    kv.free(second)
    assert kv.num_cached == 6


def test_the_cache_gives_way_but_not_the_matched_part_of_it() -> None:
    kv = KvCacheManager(8)
    kv.free(computed(kv, TOKENS))
    match = kv.match(TOKENS[:49])
    assert len(match.nodes) == 3
    assert kv.reserve(16 * 9, match) is None, "five blocks besides the match, not six"
    holding = kv.reserve(16 * 8, match)
    assert holding is not None
    assert sorted(holding.blocks) == list(range(8))


def test_extending_takes_blocks_only_when_needed() -> None:
    kv = KvCacheManager(3)
    holding = kv.reserve(16, NOTHING)
    assert holding is not None
    assert kv.extend(holding, 16) == ()
    assert len(kv.extend(holding, 33) or ()) == 2
    assert kv.extend(holding, 49) is None
    assert kv.extend(holding, 48) == ()


def test_who_computes_the_same_tokens_second_keeps_a_copy() -> None:
    kv = KvCacheManager(16)
    first, second = kv.reserve(100, NOTHING), kv.reserve(100, NOTHING)
    assert first is not None
    assert second is not None
    for holding in (first, second):
        kv.publish(holding, TOKENS, 100)
    assert [node.block for node in kv.match(TOKENS).nodes] == first.blocks[:6]
    kv.free(second)
    assert (kv.num_held, kv.num_free) == (7, 9), "the copy is freed, not cached"
    kv.free(first)
    assert (kv.num_held, kv.num_cached) == (0, 6)


def test_what_a_failed_sequence_computed_is_forgotten() -> None:
    kv = KvCacheManager(16)
    kv.free(computed(kv, TOKENS[:40]))
    failed = computed(kv, TOKENS)
    kv.distrust(failed)
    assert len(kv.match(TOKENS).nodes) == 2, "what others have computed stays"
    kv.free(failed)
    assert (kv.num_free, kv.num_cached) == (14, 2)


def test_what_others_build_on_is_kept() -> None:
    kv = KvCacheManager(16)
    failed = computed(kv, TOKENS)
    other = kv.reserve(50, kv.match(TOKENS[:50]))
    assert other is not None
    kv.distrust(failed)
    kv.free(failed)
    assert len(kv.match(TOKENS).nodes) == 3
    kv.free(other)
    assert kv.num_held == 0


def test_what_is_published_can_be_used_before_it_is_computed_and_forgotten_if_it_never_is() -> None:
    kv = KvCacheManager(16)
    leader = kv.reserve(100, NOTHING)
    assert leader is not None
    first = kv.publish(leader, TOKENS, 40)
    assert first is not None
    assert first.block == leader.blocks[0]
    assert kv.publish(leader, TOKENS, 47) is None, "no further whole block"
    follower = kv.reserve(50, kv.match(TOKENS[:50]))
    assert follower is not None
    kv.publish(follower, TOKENS, 50)
    assert not kv.misled(follower)
    kv.forget(first)
    assert kv.misled(follower)
    assert not kv.misled(leader), "nothing of it came from the cache"
    assert kv.match(TOKENS) == NOTHING, "what was computed from it is forgotten as well"
    for holding in (leader, follower):
        kv.free(holding)
    assert (kv.num_free, kv.num_cached) == (16, 0)


def test_what_was_let_go_of_before_it_is_forgotten_is_free() -> None:
    kv = KvCacheManager(16)
    trusted = computed(kv, TOKENS, num_computed=32)
    first = kv.publish(trusted, TOKENS, 96)
    assert first is not None
    kv.free(trusted)
    kv.forget(first)
    kv.forget(first)
    assert (kv.num_free, kv.num_cached) == (14, 2)
    assert len(kv.match(TOKENS).nodes) == 2


def test_what_is_alike_within_a_block_is_copied_from_where_it_rests() -> None:
    kv = KvCacheManager(16)
    first = computed(kv, TOKENS)
    similar = TOKENS[:40] + array("q", [7] * 20)
    assert kv.match(similar).num_copied == 0, "its block may only be being computed"
    third = first.blocks[2]
    kv.free(first)
    match = kv.match(similar)
    assert (len(match.nodes), match.copied_block, match.num_copied) == (2, third, 8)
    holding = kv.reserve(len(similar), match)
    assert holding is not None
    assert (holding.hit.num_tokens, kv.num_held) == (40, 4), "the block that was copied from is not held"
    assert kv.match(TOKENS[:40]).num_copied == 7, "one token is left to compute"


def test_nothing_is_copied_from_a_block_that_is_gone() -> None:
    kv = KvCacheManager(7)
    kv.free(computed(kv, TOKENS))
    assert kv.match(TOKENS[:20]).num_copied == 3
    other = kv.reserve(16 * 6, NOTHING)
    assert other is not None
    assert kv.match(TOKENS[:20]) == kv.match(TOKENS[:17]), "only the first block is left"


def left(kv: KvCacheManager, tokens: array[int]) -> BlockTable:
    """A sequence that has computed its tokens and is gone."""
    holding = computed(kv, tokens)
    kv.publish_rest(holding, tokens, len(tokens))
    kv.free(holding)
    return holding


def test_the_last_block_of_a_sequence_is_copied_from_though_it_is_not_full() -> None:
    kv = KvCacheManager(16)
    left(kv, TOKENS)
    assert (kv.num_held, kv.num_cached) == (0, 7)
    longer = TOKENS + array("q", [7] * 20)
    match = kv.match(longer)
    assert (len(match.nodes), match.num_copied, match.num_tokens) == (6, 4, 100)
    holding = kv.reserve(len(longer), match)
    assert holding is not None
    assert match.copied_block not in holding.blocks, "who writes on has a block of its own"
    short = array("q", [5, 6, 7])
    left(kv, short)
    assert kv.match(array("q", [5, 6, 8])).num_copied == 2, "at the very beginning as well"


def test_a_block_that_is_not_full_gives_way_to_the_next_that_begins_like_it() -> None:
    kv = KvCacheManager(16)
    for last in range(5):
        left(kv, TOKENS[:98] + array("q", [last]))
        assert kv.num_cached == 7
    assert kv.match(TOKENS[:98] + array("q", [4, 0])).num_copied == 3
    left(kv, TOKENS[:98] + array("q", [4] * 14))
    assert kv.num_cached == 7, "a full one has taken its place"
    left(kv, TOKENS[:96] + array("q", [8]))
    assert kv.num_cached == 8, "one that begins differently is found beside it"


def test_what_is_not_full_and_may_be_wrong_is_not_kept() -> None:
    kv = KvCacheManager(16)
    failed = computed(kv, TOKENS)
    kv.distrust(failed)
    kv.publish_rest(failed, TOKENS, 100)
    kv.free(failed)
    leader = kv.reserve(40, NOTHING)
    assert leader is not None
    first = kv.publish(leader, TOKENS, 40)
    follower = kv.reserve(40, kv.match(TOKENS[:40]))
    assert first is not None
    assert follower is not None
    kv.forget(first)
    for misled in (follower, leader):
        kv.publish_rest(misled, TOKENS, 40)
        kv.free(misled)
    assert (kv.num_free, kv.num_cached) == (16, 0)
