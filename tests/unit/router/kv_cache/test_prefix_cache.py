from __future__ import annotations

from array import array
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from mmserve.config.resolved.deployment import FIRST_VIRTUAL_TOKEN
from mmserve.router.kv_cache.prefix_cache import Node, PrefixTree

BLOCK_TOKENS = 16


def tokens_of(*blocks: int) -> array[int]:
    """One block of equal tokens for each number in ``blocks``."""
    return array("q", [token for token in blocks for _ in range(BLOCK_TOKENS)])


def insert_path(tree: PrefixTree, *blocks: int, ids: count[int]) -> list[Node]:
    """Nodes of the blocks, from the root down; those that are new are inserted."""
    tokens, parent, path = tokens_of(*blocks), tree.root, []
    for index in range(len(blocks)):
        node = tree.insert(parent, tree.block_key(tokens, index), next(ids))
        if node is None:
            node = parent.children[tree.block_key(tokens, index)]
        path.append(node)
        parent = node
    return path


def test_match_finds_the_longest_prefix_of_whole_blocks() -> None:
    tree, ids = PrefixTree(BLOCK_TOKENS), count()
    path = insert_path(tree, 1, 2, 3, ids=ids)
    assert tree.match(tree.root, tokens_of(1, 2, 9), 3) == path[:2]
    assert tree.match(tree.root, tokens_of(1, 2, 3), 2) == path[:2]
    assert tree.match(tree.root, tokens_of(2, 3), 2) == []
    almost = tokens_of(1, 2)
    almost[-1] = 7
    assert tree.match(tree.root, almost, 2) == path[:1]


def test_virtual_token_ids_are_matched_with_all_their_bits() -> None:
    tree = PrefixTree(BLOCK_TOKENS)
    path = insert_path(tree, FIRST_VIRTUAL_TOKEN, FIRST_VIRTUAL_TOKEN + 1, ids=count())
    assert tree.match(tree.root, tokens_of(FIRST_VIRTUAL_TOKEN, FIRST_VIRTUAL_TOKEN + 1), 2) == path
    assert tree.match(tree.root, tokens_of(0, 1), 2) == [], "the upper 32 bits are part of the id"


def test_the_same_tokens_are_inserted_once() -> None:
    tree = PrefixTree(BLOCK_TOKENS)
    key = tree.block_key(tokens_of(1), 0)
    assert tree.insert(tree.root, key, 0) is not None
    assert tree.insert(tree.root, key, 1) is None
    assert [node.block for node in tree.match(tree.root, tokens_of(1), 1)] == [0]


def test_eviction_takes_the_least_recently_used_node_and_leaves_first() -> None:
    tree, ids = PrefixTree(BLOCK_TOKENS), count()
    old, new = insert_path(tree, 1, 2, ids=ids), insert_path(tree, 5, ids=ids)
    for path in (old, new):
        for node in reversed(path):
            tree.mark_evictable(node)
    tree.mark_in_use(old[0])
    tree.mark_evictable(old[0])
    assert [tree.evict() for _ in range(3)] == [old[1].block, new[0].block, old[0].block]
    assert tree.match(tree.root, tokens_of(1), 1) == []
    assert tree.num_evictable == 0


def test_a_removed_node_is_not_matched_and_not_evicted() -> None:
    tree, ids = PrefixTree(BLOCK_TOKENS), count()
    path = insert_path(tree, 1, 2, 3, ids=ids)
    assert tree.descendants(path[0]) == path[1:]
    tree.mark_evictable(path[2])
    tree.remove(path[2])
    assert [node.removed for node in path] == [False, False, True]
    assert tree.match(tree.root, tokens_of(1, 2, 3), 3) == path[:2]
    assert tree.num_evictable == 0


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=20), st.data())
def test_eviction_takes_only_unreferenced_leaves(paths: list[list[int]], data: st.DataObject) -> None:
    tree, ids = PrefixTree(BLOCK_TOKENS), count()
    ref_counts: dict[Node, int] = {}
    in_use: list[list[Node]] = []
    for blocks in paths:
        path = insert_path(tree, *blocks, ids=ids)
        for node in path:
            if node in ref_counts and ref_counts[node] == 0:
                tree.mark_in_use(node)
            ref_counts[node] = ref_counts.get(node, 0) + 1
        in_use.append(path)
        if data.draw(st.booleans()):
            for node in reversed(in_use.pop(data.draw(st.integers(0, len(in_use) - 1)))):
                ref_counts[node] -= 1
                if ref_counts[node] == 0:
                    tree.mark_evictable(node)
        if tree.num_evictable and data.draw(st.booleans()):
            block = tree.evict()
            evicted = next(node for node in ref_counts if node.block == block)
            assert ref_counts.pop(evicted) == 0
            assert not evicted.children
    assert set(tree.descendants(tree.root)) == set(ref_counts)


def test_a_partial_match_compares_the_last_freed_child_token_by_token() -> None:
    tree, ids = PrefixTree(BLOCK_TOKENS), count()
    tokens = array("q", [1] * 10 + [2] * 6)
    assert tree.find_partial_match(tree.root, tokens) is None
    older, newer = insert_path(tree, 1, ids=ids)[0], tree.insert(tree.root, tokens.tobytes(), next(ids))
    assert newer is not None
    for node in (older, newer):
        tree.mark_evictable(node)
    asked = array("q", [1] * 12 + [2] * 3)
    assert tree.find_partial_match(tree.root, asked) == (newer.block, 10)
    assert tree.find_partial_match(tree.root, asked[:4]) == (newer.block, 4)
    assert tree.find_partial_match(tree.root, tokens_of(3)) is None
    tree.remove(newer)
    assert tree.find_partial_match(tree.root, asked) is None
