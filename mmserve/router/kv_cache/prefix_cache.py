"""Prefix tree over token ids, one node for each cached KV block, and the eviction order of unused nodes.

Lookups find whole blocks, and below them one block whose first tokens match and can be copied. Blocks that are not full
(the last block of a finished sequence) are cached only to be copied from. Prompts with a salt have a tree of their own
for each salt. Pure: no clock, no I/O.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable
from itertools import takewhile

_TOKEN_NBYTES = 8
"""Token ids are int64."""
_NO_BLOCK = -1
"""``block`` of a root."""


class Node:
    """A cached block. ``block`` holds the keys and values of its tokens on every rank."""

    __slots__ = ("block", "children", "first_token", "key", "last_freed_child", "parent")

    def __init__(self, key: bytes, block: int, parent: Node | None) -> None:
        self.key = key
        """The block's token ids, int64. Of a root: the salt."""
        self.first_token = key[:_TOKEN_NBYTES]
        self.block = block
        self.parent = parent
        self.children: dict[bytes, Node] = {}
        self.last_freed_child: dict[bytes, Node] = {}
        """First token id -> most recently freed child. One candidate a token keeps lookup O(1). Freed blocks are always
        fully computed."""

    @property
    def is_root(self) -> bool:
        """True for what stands above the first blocks of prompts: no block."""
        return self.block == _NO_BLOCK

    @property
    def removed(self) -> bool:
        """True once the node is out of the tree. Sequences that use its block keep it."""
        return self.parent is None


class PrefixTree:
    """Cached prefixes at block granularity. The token ids themselves are the key, so there are no hash collisions.

    A node is in use while sequences reference its block, and evictable otherwise. References are taken from the root
    down and released from the deepest node up. So in the order of becoming evictable a node comes after all its
    descendants: the least recently used evictable node is always a leaf, and evicting it takes constant time.
    The caller counts references and reports when the count leaves or reaches 0.
    """

    def __init__(self, block_tokens: int, on_removed: Callable[[Node], None] | None = None) -> None:
        """``on_removed``: called with each node that leaves the tree."""
        self._on_removed = on_removed
        self.root = Node(b"", _NO_BLOCK, None)
        """Above the first blocks of prompts without a salt."""
        self._salted_roots: dict[bytes, Node] = {}
        """Salt -> root of its tree, while that has blocks."""
        self._block_tokens = block_tokens
        self._block_nbytes = block_tokens * _TOKEN_NBYTES
        self._evictable: OrderedDict[Node, None] = OrderedDict()

    @property
    def num_evictable(self) -> int:
        return len(self._evictable)

    def block_key(self, tokens: array[int], index: int) -> bytes:
        """Key of the block ``index`` of a sequence."""
        return tokens[index * self._block_tokens : (index + 1) * self._block_tokens].tobytes()

    def is_full(self, node: Node) -> bool:
        """False for the partial last block of a sequence: never matched or referenced, only copied from."""
        return len(node.key) == self._block_nbytes

    def root_of(self, salt: str) -> Node:
        """The root for prompts with this salt. A new one belongs to the tree from its first block on."""
        if not salt:
            return self.root
        key = salt.encode()
        return self._salted_roots.get(key) or Node(key, _NO_BLOCK, None)

    def match(self, root: Node, tokens: array[int], max_blocks: int) -> list[Node]:
        """Nodes of the longest cached prefix of ``tokens``, at most ``max_blocks``, from below the root down."""
        data, size = tokens.tobytes(), self._block_nbytes
        node, path = root, []
        for start in range(0, max_blocks * size, size):
            child = node.children.get(data[start : start + size])
            if child is None:
                break
            path.append(child)
            node = child
        return path

    def find_partial_match(self, parent: Node, tokens: array[int]) -> tuple[int, int] | None:
        """A block below ``parent`` that begins like ``tokens``, and the number of equal tokens (at least one)."""
        if (node := parent.last_freed_child.get(tokens[:1].tobytes())) is None:
            return None
        equal = takewhile(lambda pair: pair[0] == pair[1], zip(array("q", node.key), tokens, strict=False))
        return node.block, sum(1 for _ in equal)

    def insert(self, parent: Node, key: bytes, block: int) -> Node | None:
        """Adds a block in use below ``parent``. None if the same tokens are cached there already."""
        if key in parent.children:
            return None
        if parent.block == _NO_BLOCK and parent.key:
            self._salted_roots[parent.key] = parent
        node = parent.children[key] = Node(key, block, parent)
        return node

    def mark_in_use(self, node: Node) -> None:
        """An evictable node got a reference."""
        del self._evictable[node]

    def mark_evictable(self, node: Node) -> Node | None:
        """The node lost its last reference; it is evicted after all nodes that are evictable already.

        If it replaces a partial node as ``last_freed_child``, that one can no longer be found: it is removed from the
        tree and returned.
        """
        assert node.parent is not None
        replaced = node.parent.last_freed_child.get(node.first_token)
        self._evictable[node] = None
        node.parent.last_freed_child[node.first_token] = node
        if replaced is None or replaced is node or self.is_full(replaced):
            return None
        self.remove(replaced)
        return replaced

    def evict(self) -> int:
        """Removes the least recently used evictable node (at least one exists) and returns its block."""
        node = next(iter(self._evictable))
        self.remove(node)
        return node.block

    def remove(self, node: Node) -> None:
        """Removes a leaf, in use or evictable."""
        assert node.parent is not None
        assert not node.children, "a node outlives its descendants"
        self._evictable.pop(node, None)
        parent, node.parent = node.parent, None
        del parent.children[node.key]
        if parent.last_freed_child.get(node.first_token) is node:
            del parent.last_freed_child[node.first_token]
        if parent.block == _NO_BLOCK and parent.key and not parent.children:
            del self._salted_roots[parent.key]
        if self._on_removed is not None:
            self._on_removed(node)

    def descendants(self, node: Node) -> list[Node]:
        """All nodes below ``node``, parents before children."""
        found = list(node.children.values())
        for each in found:  # the list grows during the loop
            found += each.children.values()
        return found
