"""The one account of KV memory: what each sequence holds, what is cached, what is free.

Joins the block pool and the prefix tree; nobody else touches either. Knows no scheduling policy.

    free ──reserve/extend──> held ──free, computed──> cached (idle in the tree) ──evict──> free
                              └─────free, not full──────────────────────────────────────────┘

Only full, computed blocks are in the tree, and such a block is never written again. A sequence writes into blocks
that it alone holds. So what one sequence reads, no other can be writing.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from mmserve.deployment import KV_BLOCK_TOKENS
from mmserve.router.kv_blocks import BlockPool
from mmserve.router.prefix_tree import Node, PrefixTree, block_key

Place = tuple[Node, bytes]
"""Where in the tree a block of tokens belongs: its parent and its key."""


def blocks_for(num_tokens: int) -> int:
    """KV blocks that this many tokens occupy."""
    return -(-num_tokens // KV_BLOCK_TOKENS)


@dataclass(slots=True)
class Holding:
    """One sequence's KV blocks in the order of its tokens."""

    blocks: list[int]
    nodes: list[Node]
    """Tree nodes of the first len(nodes) blocks; the rest is the sequence's own."""
    num_hit_blocks: int
    """Blocks that were found in the cache, not computed for this holding."""
    shares: bool = field(default=True)
    """False once another sequence has entered the same tokens first: this one keeps its copy for itself."""


class KvLedger:
    """KV blocks of one engine (every rank has the same numbering)."""

    def __init__(self, num_blocks: int) -> None:
        self._pool = BlockPool(num_blocks)
        self._tree = PrefixTree()
        self.num_frees = 0
        """How often a sequence has let go of its blocks: while it stands still, what did not fit does not fit."""

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks with nothing in them."""
        return self._pool.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that only the cache keeps; they are given up when a sequence needs them."""
        return self._tree.num_idle

    @property
    def num_held(self) -> int:
        """Blocks that sequences hold, shared ones counted once."""
        return self.num_blocks - self.num_free - self.num_cached

    def match(self, tokens: array[int]) -> list[Node]:
        """The longest cached prefix that leaves at least one token to compute. Holds nothing yet."""
        return self._tree.match(tokens, (len(tokens) - 1) // KV_BLOCK_TOKENS)

    def num_idle(self, nodes: list[Node]) -> int:
        """How many of the matched blocks no sequence holds yet."""
        return sum(self._pool.holders(node.block) == 0 for node in nodes)

    def reserve(self, num_tokens: int, nodes: list[Node]) -> Holding | None:
        """Hold a matched prefix and new blocks for the rest of ``num_tokens``; None when too few are left."""
        num_new = blocks_for(num_tokens) - len(nodes)
        if num_new > self.num_free + self.num_cached - self.num_idle(nodes):
            return None
        for node in nodes:
            if self._pool.hold(node.block):
                self._tree.mark_busy(node)
        blocks = [node.block for node in nodes] + self._allocate(num_new)
        return Holding(blocks, list(nodes), len(nodes))

    def extend(self, holding: Holding, num_tokens: int) -> tuple[int, ...] | None:
        """New blocks so that the holding can take ``num_tokens`` in all; None when too few are left."""
        num_new = blocks_for(num_tokens) - len(holding.blocks)
        if num_new <= 0:
            return ()
        if num_new > self.num_free + self.num_cached:
            return None
        blocks = self._allocate(num_new)
        holding.blocks += blocks
        return tuple(blocks)

    def commit(self, holding: Holding, tokens: array[int], num_computed: int) -> None:
        """Enter the blocks that the first ``num_computed`` tokens fill into the tree, for others to match."""
        while holding.shares and len(holding.nodes) < num_computed // KV_BLOCK_TOKENS:
            parent, key = self._place(holding.nodes, tokens)
            node = self._tree.insert(parent, key, holding.blocks[len(holding.nodes)])
            if node is None:
                holding.shares = False
            else:
                holding.nodes.append(node)

    def distrust(self, holding: Holding) -> None:
        """Take out of the tree what this sequence has computed and nobody else builds on: it may be wrong."""
        holding.shares = False
        while len(holding.nodes) > holding.num_hit_blocks:
            last = holding.nodes[-1]
            if last.children or self._pool.holders(last.block) > 1:
                return
            self._tree.remove(last)
            holding.nodes.pop()

    def free(self, holding: Holding) -> None:
        """Let go of everything: computed blocks stay cached, the others are free. The deepest go first."""
        self.num_frees += 1
        cached = len(holding.nodes)
        for block in reversed(holding.blocks[cached:]):
            self._pool.let_go(block)
            self._pool.reclaim(block)
        for node in reversed(holding.nodes):
            if self._pool.let_go(node.block):
                self._tree.mark_idle(node)
        holding.blocks, holding.nodes = [], []

    def missing(self, nodes: list[Node], tokens: array[int]) -> Place | None:
        """The place of the first block that a sequence with this match could still use from the cache."""
        return self._place(nodes, tokens) if len(nodes) < (len(tokens) - 1) // KV_BLOCK_TOKENS else None

    def computing(self, holding: Holding, tokens: array[int]) -> Place | None:
        """The place of the next block that the sequence will enter."""
        wanted = holding.shares and len(holding.nodes) < len(tokens) // KV_BLOCK_TOKENS
        return self._place(holding.nodes, tokens) if wanted else None

    def _place(self, nodes: list[Node], tokens: array[int]) -> Place:
        return (nodes[-1] if nodes else self._tree.root), block_key(tokens, len(nodes))

    def _allocate(self, count: int) -> list[int]:
        while self._pool.num_free < count:
            self._pool.reclaim(self._tree.evict())
        return self._pool.allocate(count)
