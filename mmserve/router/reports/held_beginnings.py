"""Which beginnings of prompts, by fronts' names, are in the prefix cache: as the cache itself tells it. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from mmserve.cluster.scale.announced import Announced
from mmserve.messages.media import MediaSpan
from mmserve.router.kv_cache.prefix_cache import Node

_MAX_NAMES = 1 << 16
"""Many names may be of the same tokens; the one that was asked for longest ago is forgotten. Bounds reports too."""


class HeldBeginnings:
    """A ``CacheListener``. A name is held while the block is cached with which its beginning ends."""

    def __init__(self, epoch: int) -> None:
        self.announced = Announced("blocks", epoch)
        self._nodes: OrderedDict[int, Node] = OrderedDict()
        """By name."""
        self._names: dict[Node, set[int]] = {}

    def hold(self, beginnings: Sequence[tuple[int, int]], nodes: Sequence[Node], block_tokens: int) -> None:
        """A prompt was computed. ``beginnings``: names and their tokens; ``nodes``: of its first blocks, those that are
        cached."""
        for name, num_tokens in reversed(beginnings):  # the end of a prompt is forgotten first
            if 0 < (num_blocks := num_tokens // block_tokens) <= len(nodes):
                self._forget(name)
                self._set(name, nodes[num_blocks - 1])
        while len(self._nodes) > _MAX_NAMES:
            name = next(iter(self._nodes))
            self._forget(name)
            self.announced.discard(name)

    def stored(self, nodes: Sequence[Node], index: int, spans: tuple[MediaSpan, ...], salt: str) -> None:
        """See CacheListener. No step has filled the blocks yet; ``hold`` is called when one has."""

    def removed(self, node: Node) -> None:
        """See CacheListener."""
        for name in self._names.pop(node, ()):
            del self._nodes[name]
            self.announced.discard(name)

    def _set(self, name: int, node: Node) -> None:
        self._nodes[name] = node
        self._names.setdefault(node, set()).add(name)
        self.announced.add(name)

    def _forget(self, name: int) -> None:
        if (node := self._nodes.pop(name, None)) is not None:
            names = self._names[node]
            names.remove(name)
            if not names:
                del self._names[node]
