"""The KV cache of one engine: allocates blocks to sequences, caches computed prefixes, evicts them to make room.

    free --allocate, extend--> used --free--> cached --evict--> free

Blocks that are not in the prefix cache go from used straight to free.

Blocks are shared between sequences when they are full. A block enters the prefix cache as soon as the step that fills
it is planned, before that step has run. Other sequences of the same step may already share it. This is correct for two
reasons: steps run in the order of their plans, and within a step each layer writes the K and V of all tokens before any
token attends to them. A shared block is never written again, because a sequence writes only into blocks that it alone
uses. If the step fails, ``invalidate`` removes its blocks from the cache, and all blocks that were computed from them.

A sequence's tokens may agree with a cached block only up to a token in its middle. Such a block cannot be shared, but
the K and V of its first, equal tokens can be used: the ranks copy them into a block of the sequence. The source is a
cached block that a sequence has freed; it may be the partial last block of a finished sequence. Ranks copy before they
compute a step, so the source may be evicted and given to another sequence in the same plan.

Pure: no clock, no I/O.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from mmserve.messages.media import MediaSpan
from mmserve.router.kv_cache.block_pool import BlockPool
from mmserve.router.kv_cache.listener import CacheListener
from mmserve.router.kv_cache.prefix_cache import Node, PrefixTree


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The cached part of a sequence's tokens. Holds no references."""

    nodes: list[Node]
    """Whole blocks, from the root down."""
    num_tokens: int = 0
    """Tokens that need not be computed, copied ones included."""
    copy_source: int = -1
    """The block to copy the tokens after the whole blocks from; -1: none."""
    num_copied_tokens: int = 0
    salt: str = ""
    """Only sequences with the same salt share blocks."""


@dataclass(slots=True)
class BlockTable:
    """The KV blocks of one sequence, in the order of its tokens."""

    blocks: list[int]
    nodes: list[Node]
    """Cache nodes of the first len(nodes) blocks. The other blocks are used by this sequence alone."""
    prefix_hit: PrefixMatch
    """The cached prefix that the table was allocated with."""
    spans: tuple[MediaSpan, ...] = ()
    """Rows of images among the tokens; of interest to a listener alone."""
    cacheable: bool = True
    """False once another sequence has cached the same tokens first: the further blocks of this one stay private."""

    @property
    def num_hit_blocks(self) -> int:
        """Number of blocks at the start of the table that were in the prefix cache when the table was allocated. This
        sequence has not computed them."""
        return len(self.prefix_hit.nodes)


class KvCacheManager:
    """KV blocks of ``block_tokens`` tokens each. Every rank uses the same block numbers."""

    def __init__(self, num_blocks: int, block_tokens: int, listener: CacheListener | None = None) -> None:
        self.block_tokens = block_tokens
        self._pool = BlockPool(num_blocks)
        self._tree = PrefixTree(block_tokens, None if listener is None else listener.removed)
        self._listener = listener
        self.num_frees = 0
        """Number of calls of ``free``. Until it changes, a sequence that did not fit still does not fit."""

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        """Blocks without contents."""
        return self._pool.num_free

    @property
    def num_cached(self) -> int:
        """Blocks that only the prefix cache keeps; evicted when a sequence needs them."""
        return self._tree.num_evictable

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated: free and evictable ones."""
        return self.num_free + self.num_cached

    @property
    def num_used(self) -> int:
        """Blocks that sequences use. A shared block counts once."""
        return self.num_blocks - self.num_available

    def blocks_for(self, num_tokens: int) -> int:
        """Number of blocks that ``num_tokens`` tokens occupy."""
        return -(-num_tokens // self.block_tokens)

    def match_prefix(self, tokens: array[int], salt: str = "") -> PrefixMatch:
        """The longest prefix cached with this salt that leaves at least one token to compute."""
        size, root = self.block_tokens, self._tree.root_of(salt)
        nodes = self._tree.match(root, tokens, (len(tokens) - 1) // size)
        end = len(nodes) * size
        rest = tokens[end : min(end + size, len(tokens) - 1)]
        parent = nodes[-1] if nodes else root
        source, num_copied = self._tree.find_partial_match(parent, rest) or (-1, 0)
        return PrefixMatch(nodes, end + num_copied, source, num_copied, salt)

    def cached_blocks(self, tokens: array[int], salt: str) -> list[Node]:
        """Of the first full blocks of these tokens, those that are cached now."""
        return self._tree.match(self._tree.root_of(salt), tokens, len(tokens) // self.block_tokens)

    def num_unreferenced(self, nodes: list[Node]) -> int:
        """How many of the nodes' blocks no sequence uses."""
        return sum(self._pool.ref_count(node.block) == 0 for node in nodes)

    def allocate(self, num_tokens: int, match: PrefixMatch, spans: tuple[MediaSpan, ...] = ()) -> BlockTable | None:
        """A table for ``num_tokens`` tokens: the matched blocks, then new ones. None if too few are available."""
        nodes = match.nodes
        num_new = self.blocks_for(num_tokens) - len(nodes)
        if num_new > self.num_available - self.num_unreferenced(nodes):
            return None
        for node in nodes:
            if self._pool.incref(node.block):
                self._tree.mark_in_use(node)
        blocks = [node.block for node in nodes] + self._allocate(num_new)
        return BlockTable(blocks, list(nodes), match, spans=spans)

    def extend(self, table: BlockTable, num_tokens: int) -> tuple[int, ...] | None:
        """Adds blocks until the table holds ``num_tokens`` tokens, and returns them. None if too few are available."""
        num_new = self.blocks_for(num_tokens) - len(table.blocks)
        if num_new <= 0:
            return ()
        if num_new > self.num_available:
            return None
        blocks = self._allocate(num_new)
        table.blocks += blocks
        return tuple(blocks)

    def cache_full_blocks(self, table: BlockTable, tokens: array[int], num_computed: int) -> Node | None:
        """Caches the full blocks among the first ``num_computed`` tokens. Returns the first newly cached node."""
        num_known = len(table.nodes)
        while table.cacheable and len(table.nodes) < num_computed // self.block_tokens:
            index = len(table.nodes)
            parent = self._last_node(table)
            node = self._tree.insert(parent, self._tree.block_key(tokens, index), table.blocks[index])
            if node is None:
                table.cacheable = False
            else:
                table.nodes.append(node)
        if len(table.nodes) == num_known:
            return None
        if self._listener is not None:
            self._listener.stored(table.nodes[num_known:], num_known, table.spans, table.prefix_hit.salt)
        return table.nodes[num_known]

    def cache_partial_block(self, table: BlockTable, tokens: array[int], num_computed: int) -> None:
        """Caches the last, partly filled block of a sequence. Called just before ``free``."""
        num_full, num_rest = divmod(num_computed, self.block_tokens)
        after_invalid = table.nodes and table.nodes[-1].removed
        if not num_rest or not table.cacheable or after_invalid or len(table.nodes) != num_full:
            return
        rest = tokens[num_full * self.block_tokens : num_computed]
        if node := self._tree.insert(self._last_node(table), rest.tobytes(), table.blocks[num_full]):
            table.nodes.append(node)

    def invalidate(self, first: Node) -> None:
        """Removes a block that was not computed from the cache, and all blocks below it: they were computed from it."""
        if first.removed:
            return
        for node in reversed([first, *self._tree.descendants(first)]):
            self._tree.remove(node)
            if self._pool.ref_count(node.block) == 0:
                self._pool.reclaim(node.block)

    def uses_invalid_block(self, table: BlockTable) -> bool:
        """True if the table's prefix hit includes a block that was invalidated."""
        # invalidate() also removes all nodes below, so the last node is removed if any node of the hit is.
        return table.num_hit_blocks > 0 and table.nodes[table.num_hit_blocks - 1].removed

    def discard_computed(self, table: BlockTable) -> None:
        """Removes from the cache what a failed sequence has computed, except blocks that other sequences use."""
        table.cacheable = False
        for node in reversed(table.nodes[table.num_hit_blocks :]):
            if node.children or self._pool.ref_count(node.block) > 1:
                return
            self.invalidate(node)

    def free(self, table: BlockTable) -> None:
        """Releases all blocks of the table, deepest first. Cached blocks become evictable, the others free."""
        self.num_frees += 1
        for block in reversed(table.blocks[len(table.nodes) :]):
            self._pool.decref(block)
            self._pool.reclaim(block)
        for node in reversed(table.nodes):
            if self._pool.decref(node.block):
                self._release(node)
        table.blocks, table.nodes = [], []

    def _last_node(self, table: BlockTable) -> Node:
        return table.nodes[-1] if table.nodes else self._tree.root_of(table.prefix_hit.salt)

    def _release(self, node: Node) -> None:
        """The node's block has lost its last reference."""
        if node.removed:
            self._pool.reclaim(node.block)
        elif replaced := self._tree.mark_evictable(node):
            self._pool.reclaim(replaced.block)

    def _allocate(self, count: int) -> list[int]:
        while self._pool.num_free < count:
            self._pool.reclaim(self._tree.evict())
        return self._pool.allocate(count)
