"""What is in the arena, for people: every extent, or cells where there are too many of them. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from mmserve.cache_server.allocator.extents import Extent
from mmserve.cache_server.entries import CacheEntry
from mmserve.messages.server_state import ArenaExtent, ArenaState, ExtentState

MAX_EXTENTS = 4096
"""More would be neither seen nor sent every second."""


def extents_of(entries: Iterable[CacheEntry]) -> list[ArenaExtent]:
    """Copies of what the entries' extents are now."""
    extents = []
    for entry in entries:
        failed, leases = entry.stage == "failed", entry.num_leases
        embed_state: ExtentState = "failed" if failed else "embed" if entry.data is None else "reserved"
        extents.append(ArenaExtent(entry.embed.offset, entry.nbytes - entry.data_nbytes, embed_state, leases))
        if entry.data is not None:
            data_state: ExtentState = "failed" if failed else "data" if entry.stage == "data" else "writing"
            extents.append(ArenaExtent(entry.data.offset, entry.data_nbytes, data_state, leases))
    return extents


def draw(
    nbytes: int,
    num_leases: int,
    extents: Sequence[ArenaExtent],
    holes: Sequence[Extent],
    max_extents: int = MAX_EXTENTS,
) -> ArenaState:
    """``holes``: (start, end) of each."""
    sizes = [end - start for start, end in holes]
    cell_nbytes = -(-nbytes // max_extents) if len(extents) > max_extents else 0
    shown = _cells(extents, cell_nbytes) if cell_nbytes else sorted(extents, key=lambda extent: extent.offset)
    return ArenaState(
        nbytes=nbytes,
        num_extents=len(extents),
        num_leases=num_leases,
        num_holes=len(sizes),
        free_nbytes=sum(sizes),
        largest_hole_nbytes=max(sizes, default=0),
        cell_nbytes=cell_nbytes,
        extents=tuple(shown),
    )


def _cells(extents: Iterable[ArenaExtent], cell_nbytes: int) -> list[ArenaExtent]:
    """The used cells: their used bytes, the state that most of these are in, and the most leases of such an extent."""
    used: defaultdict[int, Counter[ExtentState]] = defaultdict(Counter)
    leases: Counter[tuple[int, ExtentState]] = Counter()
    for extent in extents:
        end = extent.offset + extent.nbytes
        for cell in range(extent.offset // cell_nbytes, -(-end // cell_nbytes)):
            start = cell * cell_nbytes
            used[cell][extent.state] += min(end, start + cell_nbytes) - max(extent.offset, start)
            leases[cell, extent.state] = max(leases[cell, extent.state], extent.leases)
    cells = []
    for cell, states in sorted(used.items()):
        ((state, _),) = states.most_common(1)
        cells.append(ArenaExtent(cell * cell_nbytes, states.total(), state, leases[cell, state]))
    return cells
