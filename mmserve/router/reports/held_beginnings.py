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
    """A ``CacheListener``. A name is held while a block is cached with which its beginning ends, in any prompt: how
    many tokens a beginning has is estimated for each prompt. One that is shorter than a block ends with the first.

    So who holds a name holds those before it of the same prompt, which a front relies on.
    """

    def __init__(self, epoch: int) -> None:
        self.announced = Announced("blocks", epoch)
        self._nodes: OrderedDict[int, set[Node]] = OrderedDict()
        """By name."""
        self._names: dict[Node, set[int]] = {}

    def hold(self, beginnings: Sequence[tuple[int, int]], nodes: Sequence[Node], block_tokens: int) -> None:
        """A prompt was computed. ``beginnings``: names and their tokens; ``nodes``: of its first blocks, those that are
        cached."""
        for name, num_tokens in reversed(beginnings):  # the end of a prompt is forgotten first
            if (num_blocks := max(1, num_tokens // block_tokens)) <= len(nodes):
                self._add(name, nodes[num_blocks - 1])
        while len(self._nodes) > _MAX_NAMES:
            name, held = self._nodes.popitem(last=False)
            for node in held:
                self._drop(node, name)
            self.announced.discard(name)

    def stored(self, nodes: Sequence[Node], index: int, spans: tuple[MediaSpan, ...], salt: str) -> None:
        """See CacheListener. No step has filled the blocks yet; ``hold`` is called when one has."""

    def removed(self, node: Node) -> None:
        """See CacheListener."""
        for name in self._names.pop(node, ()):
            nodes = self._nodes[name]
            nodes.remove(node)
            if not nodes:
                del self._nodes[name]
                self.announced.discard(name)

    def _add(self, name: int, node: Node) -> None:
        self._nodes.setdefault(name, set()).add(node)
        self._nodes.move_to_end(name)
        self._names.setdefault(node, set()).add(name)
        self.announced.add(name)

    def _drop(self, node: Node, name: int) -> None:
        names = self._names[node]
        names.remove(name)
        if not names:
            del self._names[node]
