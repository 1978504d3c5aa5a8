"""Radix tree over token ids, one node per KV block, and the order in which idle nodes are evicted.

Besides whole blocks it finds one that begins alike: its first tokens are worth a copy. Only for that it has blocks that
are not full, where sequences ended.

Knows no sequences and counts no holders: the ledger says when a node becomes idle or busy.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from itertools import takewhile

from mmserve.config.deployment import KV_BLOCK_TOKENS

_TOKEN_NBYTES = 8
_BLOCK_NBYTES = KV_BLOCK_TOKENS * _TOKEN_NBYTES


def block_key(tokens: array[int], index: int) -> bytes:
    """The int64 token ids of a sequence's block ``index``, as the tree's edge label."""
    return tokens[index * KV_BLOCK_TOKENS : (index + 1) * KV_BLOCK_TOKENS].tobytes()


class Node:
    """A block of tokens after its parent's; ``block`` holds their keys and values on every rank."""

    __slots__ = ("block", "children", "first_token", "key", "parent", "rested")

    def __init__(self, key: bytes, block: int, parent: Node | None) -> None:
        self.key = key
        self.first_token = key[:_TOKEN_NBYTES]
        """The id of its block's first token, as in its key."""
        self.block = block
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.rested: dict[bytes, Node] = {}
        """By first token: the child that became idle last. One alone, so that a search does not depend on how many
        there are; and one that rests has been computed."""

    @property
    def is_full(self) -> bool:
        """Its block has no room for more tokens. One that is not full is never held nor matched, only copied from."""
        return len(self.key) == _BLOCK_NBYTES

    @property
    def forgotten(self) -> bool:
        """Taken out of the tree; whoever holds its block still may go on doing so."""
        return self.parent is None


class PrefixTree:
    """Prefixes at block granularity; the token ids themselves are the key, so nothing can collide.

    A node is busy while sequences hold its block and idle otherwise. A path is held from the root down and
    given up from its deepest node upwards, so in the order of becoming idle every node comes after all its
    descendants: the least recently used idle node is always a leaf, and evicting it takes constant time.
    """

    def __init__(self) -> None:
        self.root = Node(b"", -1, None)
        self._idle: OrderedDict[Node, None] = OrderedDict()

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def match(self, tokens: array[int], max_blocks: int) -> list[Node]:
        """Nodes of the longest cached prefix of ``tokens``, at most ``max_blocks`` of them, from the root down."""
        data = tokens.tobytes()
        node, path = self.root, []
        for start in range(0, max_blocks * _BLOCK_NBYTES, _BLOCK_NBYTES):
            child = node.children.get(data[start : start + _BLOCK_NBYTES])
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def alike(self, parent: Node, tokens: array[int]) -> tuple[int, int] | None:
        """A block below ``parent`` that begins as ``tokens`` do, and how many of its tokens are the same."""
        if (node := parent.rested.get(tokens[:1].tobytes())) is None:
            return None
        same = takewhile(lambda pair: pair[0] == pair[1], zip(array("q", node.key), tokens, strict=False))
        return node.block, sum(1 for _ in same)

    def insert(self, parent: Node, key: bytes, block: int) -> Node | None:
        """Enter a block below ``parent``, busy; None when the same tokens are there already."""
        if key in parent.children:
            return None
        node = parent.children[key] = Node(key, block, parent)
        return node

    def mark_busy(self, node: Node) -> None:
        """A sequence holds the idle node's block again: it cannot be evicted."""
        del self._idle[node]

    def mark_idle(self, node: Node) -> Node | None:
        """The last holder is gone; from now on the node may be evicted, after all that are idle already. Gives one that
        is not full and is not found any more, as the new one is found instead: it is out of the tree."""
        assert node.parent is not None
        hidden = node.parent.rested.get(node.first_token)
        self._idle[node] = None
        node.parent.rested[node.first_token] = node
        if hidden is None or hidden.is_full or hidden is node:
            return None
        self.remove(hidden)
        return hidden

    def evict(self) -> int:
        """Forget the least recently used idle node (at least one is idle) and give its block."""
        node = next(iter(self._idle))
        self.remove(node)
        return node.block

    def remove(self, node: Node) -> None:
        """Forget a leaf: its tokens are not found any more."""
        assert node.parent is not None
        assert not node.children, "a node outlives its descendants"
        self._idle.pop(node, None)
        del node.parent.children[node.key]
        if node.parent.rested.get(node.first_token) is node:
            del node.parent.rested[node.first_token]
        node.parent = None

    def below(self, node: Node) -> list[Node]:
        """All descendants, parents first."""
        found = list(node.children.values())
        for each in found:  # it grows meanwhile
            found += each.children.values()
        return found
