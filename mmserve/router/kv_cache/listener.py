"""The interface of an observer of the prefix cache: it is called when a block is stored or removed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mmserve.messages.media import MediaSpan
from mmserve.router.kv_cache.prefix_cache import Node


class CacheListener(Protocol):
    """Called while a step is planned or its result applied, so it must not wait."""

    def stored(self, nodes: Sequence[Node], index: int, spans: tuple[MediaSpan, ...], salt: str) -> None:
        """Full blocks have entered the cache, each below the one before; no step has filled them yet.

        ``index``: of the first among its prompt's blocks. ``spans``, ``salt``: of the prompt.
        """

    def removed(self, node: Node) -> None:
        """A block has left the cache. Partial blocks leave it too, which were never reported as stored."""


class Listeners:
    """A CacheListener that tells several."""

    def __init__(self, listeners: Sequence[CacheListener]) -> None:
        self._listeners = listeners

    def stored(self, nodes: Sequence[Node], index: int, spans: tuple[MediaSpan, ...], salt: str) -> None:
        """See CacheListener."""
        for each in self._listeners:
            each.stored(nodes, index, spans, salt)

    def removed(self, node: Node) -> None:
        """See CacheListener."""
        for each in self._listeners:
            each.removed(node)
