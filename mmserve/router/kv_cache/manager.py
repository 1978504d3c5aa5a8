"""The one account of KV memory: what each sequence holds, what is cached, what is free.

Joins the block pool and the prefix tree; nobody else touches either. Knows no scheduling policy.

    free ──reserve/extend──> held ──free──> cached (idle in the tree) ──evict──> free
                              └─free, not computed or there already────────────────┘

Only full blocks are shared: computed ones, and those that a sequence fills in a step that is in flight or being
planned, for a rank keeps the K and V of all tokens of a step, layer by layer, before anyone attends to them. None is
written again, and a sequence writes into blocks that it alone holds, so nobody reads what is not written or changes
later. When the step fails, ``forget`` takes the blocks out again, and with them what was computed from them.

Where the cached prefix ends within a block, the tokens that are the same are copied into the sequence's own block; the
last block of a sequence that has left, full or not, is there to be copied from. The ranks copy before they compute
anything, so only from blocks of earlier steps, and it does not matter who is given the block that was copied from.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from mmserve.config.deployment import KV_BLOCK_TOKENS
from mmserve.router.kv_cache.block_pool import BlockPool
from mmserve.router.kv_cache.prefix_cache import Node, PrefixTree, block_key


def blocks_for(num_tokens: int) -> int:
    """KV blocks that this many tokens occupy."""
    return -(-num_tokens // KV_BLOCK_TOKENS)


@dataclass(frozen=True, slots=True)
class Match:
    """What is cached of a sequence's beginning. Holds nothing."""

    nodes: list[Node]
    """Of whole blocks, from the root down."""
    copied_block: int = -1
    """A block of which ``num_copied`` tokens come next; -1: none."""
    num_copied: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that need not be computed."""
        return len(self.nodes) * KV_BLOCK_TOKENS + self.num_copied


@dataclass(slots=True)
class BlockTable:
    """One sequence's KV blocks in the order of its tokens."""

    blocks: list[int]
    nodes: list[Node]
    """Tree nodes of the first len(nodes) blocks; the rest is the sequence's own."""
    hit: Match
    """What was found in the cache, not computed for this holding."""
    shares: bool = field(default=True)
    """False once another sequence has entered the same tokens first: this one keeps its copy for itself."""

    @property
    def num_hit_blocks(self) -> int:
        """Of the first blocks: how many are shared with who computed them."""
        return len(self.hit.nodes)


class KvCacheManager:
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
    def num_left(self) -> int:
        """Blocks that a sequence could be given."""
        return self.num_free + self.num_cached

    @property
    def num_held(self) -> int:
        """Blocks that sequences hold, shared ones counted once."""
        return self.num_blocks - self.num_left

    def match(self, tokens: array[int]) -> Match:
        """The longest cached prefix that leaves at least one token to compute."""
        nodes = self._tree.match(tokens, (len(tokens) - 1) // KV_BLOCK_TOKENS)
        end = len(nodes) * KV_BLOCK_TOKENS
        rest = tokens[end : min(end + KV_BLOCK_TOKENS, len(tokens) - 1)]
        return Match(nodes, *(self._tree.alike(nodes[-1] if nodes else self._tree.root, rest) or ()))

    def num_idle(self, nodes: list[Node]) -> int:
        """How many of the matched blocks no sequence holds yet."""
        return sum(self._pool.holders(node.block) == 0 for node in nodes)

    def reserve(self, num_tokens: int, match: Match) -> BlockTable | None:
        """Hold a matched prefix and new blocks for the rest of ``num_tokens``; None when too few are left."""
        nodes = match.nodes
        num_new = blocks_for(num_tokens) - len(nodes)
        if num_new > self.num_left - self.num_idle(nodes):
            return None
        for node in nodes:
            if self._pool.hold(node.block):
                self._tree.mark_busy(node)
        blocks = [node.block for node in nodes] + self._allocate(num_new)
        return BlockTable(blocks, list(nodes), match)

    def extend(self, holding: BlockTable, num_tokens: int) -> tuple[int, ...] | None:
        """New blocks so that the holding can take ``num_tokens`` in all; None when too few are left."""
        num_new = blocks_for(num_tokens) - len(holding.blocks)
        if num_new <= 0:
            return ()
        if num_new > self.num_left:
            return None
        blocks = self._allocate(num_new)
        holding.blocks += blocks
        return tuple(blocks)

    def publish(self, holding: BlockTable, tokens: array[int], num_computed: int) -> Node | None:
        """Enter the blocks that the first ``num_computed`` tokens fill into the tree, for others to match; the first
        of them that is new there."""
        known = len(holding.nodes)
        while holding.shares and len(holding.nodes) < num_computed // KV_BLOCK_TOKENS:
            index = len(holding.nodes)
            parent = holding.nodes[-1] if holding.nodes else self._tree.root
            node = self._tree.insert(parent, block_key(tokens, index), holding.blocks[index])
            if node is None:
                holding.shares = False
            else:
                holding.nodes.append(node)
        return holding.nodes[known] if len(holding.nodes) > known else None

    def publish_rest(self, holding: BlockTable, tokens: array[int], num_computed: int) -> None:
        """Enter the block that the first ``num_computed`` tokens fill in part, of a sequence that lets go of it now."""
        num_full, num_rest = divmod(num_computed, KV_BLOCK_TOKENS)
        misled = holding.nodes and holding.nodes[-1].forgotten
        if not num_rest or not holding.shares or misled or len(holding.nodes) != num_full:
            return
        parent = holding.nodes[-1] if holding.nodes else self._tree.root
        rest = tokens[num_full * KV_BLOCK_TOKENS : num_computed]
        if node := self._tree.insert(parent, rest.tobytes(), holding.blocks[num_full]):
            holding.nodes.append(node)

    def forget(self, first: Node) -> None:
        """Take a block that was not computed out of the tree, and all below it: they were computed from it."""
        if first.forgotten:
            return
        for node in reversed([first, *self._tree.below(first)]):
            self._tree.remove(node)
            if self._pool.holders(node.block) == 0:
                self._pool.reclaim(node.block)

    def misled(self, holding: BlockTable) -> bool:
        """What it found in the cache was forgotten after all."""
        return holding.num_hit_blocks > 0 and holding.nodes[holding.num_hit_blocks - 1].forgotten

    def distrust(self, holding: BlockTable) -> None:
        """Take out of the tree what this sequence has computed and nobody else builds on: it may be wrong."""
        holding.shares = False
        for node in reversed(holding.nodes[holding.num_hit_blocks :]):
            if node.children or self._pool.holders(node.block) > 1:
                return
            self.forget(node)

    def free(self, holding: BlockTable) -> None:
        """Let go of everything: what is in the tree stays cached, the rest is free. The deepest go first."""
        self.num_frees += 1
        for block in reversed(holding.blocks[len(holding.nodes) :]):
            self._pool.let_go(block)
            self._pool.reclaim(block)
        for node in reversed(holding.nodes):
            if self._pool.let_go(node.block):
                self._let_rest(node)
        holding.blocks, holding.nodes = [], []

    def _let_rest(self, node: Node) -> None:
        """Nobody holds the node's block any more."""
        if node.forgotten:
            self._pool.reclaim(node.block)
        elif hidden := self._tree.mark_idle(node):
            self._pool.reclaim(hidden.block)

    def _allocate(self, count: int) -> list[int]:
        while self._pool.num_free < count:
            self._pool.reclaim(self._tree.evict())
        return self._pool.allocate(count)
