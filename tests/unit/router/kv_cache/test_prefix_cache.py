from __future__ import annotations

from array import array
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from mmserve.config.deployment import FIRST_VIRTUAL_TOKEN, KV_BLOCK_TOKENS
from mmserve.router.kv_cache.prefix_cache import Node, PrefixTree, block_key


def tokens_of(*blocks: int) -> array[int]:
    """One block of equal tokens for each number."""
    return array("q", [token for token in blocks for _ in range(KV_BLOCK_TOKENS)])


def enter(tree: PrefixTree, *blocks: int, ids: count[int]) -> list[Node]:
    tokens, parent, path = tokens_of(*blocks), tree.root, []
    for index in range(len(blocks)):
        node = tree.insert(parent, block_key(tokens, index), next(ids))
        if node is None:
            node = parent.children[block_key(tokens, index)]
        path.append(node)
        parent = node
    return path


def test_the_longest_prefix_of_whole_blocks_is_found() -> None:
    tree, ids = PrefixTree(), count()
    path = enter(tree, 1, 2, 3, ids=ids)
    assert tree.match(tokens_of(1, 2, 9), 3) == path[:2]
    assert tree.match(tokens_of(1, 2, 3), 2) == path[:2]
    assert tree.match(tokens_of(2, 3), 2) == []
    almost = tokens_of(1, 2)
    almost[-1] = 7
    assert tree.match(almost, 2) == path[:1]


def test_virtual_ids_are_ids_like_any_other() -> None:
    tree = PrefixTree()
    path = enter(tree, FIRST_VIRTUAL_TOKEN, FIRST_VIRTUAL_TOKEN + 1, ids=count())
    assert tree.match(tokens_of(FIRST_VIRTUAL_TOKEN, FIRST_VIRTUAL_TOKEN + 1), 2) == path
    assert tree.match(tokens_of(0, 1), 2) == [], "the upper bits count"


def test_the_same_tokens_are_entered_once() -> None:
    tree = PrefixTree()
    key = block_key(tokens_of(1), 0)
    assert tree.insert(tree.root, key, 0) is not None
    assert tree.insert(tree.root, key, 1) is None
    assert [node.block for node in tree.match(tokens_of(1), 1)] == [0]


def test_idle_nodes_are_evicted_by_age_and_leaves_first() -> None:
    tree, ids = PrefixTree(), count()
    old, new = enter(tree, 1, 2, ids=ids), enter(tree, 5, ids=ids)
    for path in (old, new):
        for node in reversed(path):
            tree.mark_idle(node)
    tree.mark_busy(old[0])
    tree.mark_idle(old[0])
    assert [tree.evict() for _ in range(3)] == [old[1].block, new[0].block, old[0].block]
    assert tree.match(tokens_of(1), 1) == []
    assert tree.num_idle == 0


def test_a_forgotten_node_is_not_found_and_not_evicted() -> None:
    tree, ids = PrefixTree(), count()
    path = enter(tree, 1, 2, 3, ids=ids)
    assert tree.below(path[0]) == path[1:]
    tree.mark_idle(path[2])
    tree.remove(path[2])
    assert [node.forgotten for node in path] == [False, False, True]
    assert tree.match(tokens_of(1, 2, 3), 3) == path[:2]
    assert tree.num_idle == 0


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=20), st.data())
def test_eviction_only_ever_takes_leaves_that_nobody_holds(paths: list[list[int]], data: st.DataObject) -> None:
    tree, ids = PrefixTree(), count()
    holders: dict[Node, int] = {}
    held: list[list[Node]] = []
    for blocks in paths:
        path = enter(tree, *blocks, ids=ids)
        for node in path:
            if node in holders and holders[node] == 0:
                tree.mark_busy(node)
            holders[node] = holders.get(node, 0) + 1
        held.append(path)
        if data.draw(st.booleans()):
            for node in reversed(held.pop(data.draw(st.integers(0, len(held) - 1)))):
                holders[node] -= 1
                if holders[node] == 0:
                    tree.mark_idle(node)
        if tree.num_idle and data.draw(st.booleans()):
            block = tree.evict()
            gone = next(node for node in holders if node.block == block)
            assert holders.pop(gone) == 0
            assert not gone.children
    assert set(tree.below(tree.root)) == set(holders)


def test_the_child_that_rested_last_is_compared_token_by_token() -> None:
    tree, ids = PrefixTree(), count()
    tokens = array("q", [1] * 10 + [2] * 6)
    assert tree.alike(tree.root, tokens) is None
    older, newer = enter(tree, 1, ids=ids)[0], tree.insert(tree.root, tokens.tobytes(), next(ids))
    assert newer is not None
    for node in (older, newer):
        tree.mark_idle(node)
    asked = array("q", [1] * 12 + [2] * 3)
    assert tree.alike(tree.root, asked) == (newer.block, 10)
    assert tree.alike(tree.root, asked[:4]) == (newer.block, 4)
    assert tree.alike(tree.root, tokens_of(3)) is None
    tree.remove(newer)
    assert tree.alike(tree.root, asked) is None
