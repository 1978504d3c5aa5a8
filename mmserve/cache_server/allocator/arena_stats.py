"""What the arena is used for, in figures for the metrics. Changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from mmserve.cache_server.allocator.extents import Extents
from mmserve.cache_server.entries import CacheEntry
from mmserve.ipc.arena import extent_nbytes

Usage = dict[tuple[str, str], tuple[int, int]]
"""(kind, state) -> (extents, bytes); kind data | embed | hole, state writing | ready | free."""


def usage_of(items: Collection[CacheEntry], extents: Extents) -> Usage:
    """Adds up to the whole arena; what there is none of is left out."""
    sizes: dict[tuple[str, str], list[int]] = defaultdict(list)
    sizes["embed", "ready"] = [item.nbytes for item in items if item.data is None]
    for item in [item for item in items if item.data is not None]:
        embed_nbytes = extent_nbytes(item.embed.nbytes)
        sizes["embed", "writing"].append(embed_nbytes)
        sizes["data", "ready" if item.stage in ("data", "failed") else "writing"].append(item.nbytes - embed_nbytes)
    sizes["hole", "free"] = [end - start for start, end in extents.holes()]
    return {label: (len(each), sum(each)) for label, each in sizes.items() if each}
