"""What fixed pages would cost instead of contiguous extents: bytes that stay unused, and taking pages."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence

from benchmarks.images.media_table.images import image
from benchmarks.load import report
from mmserve.cache_server.allocator.extents import FreeExtents
from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem

PAGE_NBYTES = 256 << 10
_IMAGES = 2_000


def _fixed(file_nbytes: int, embed_nbytes: int) -> Callable[[int, random.Random], AllocItem]:
    return lambda number, rng: AllocItem(number.to_bytes(16, "big"), 1, file_nbytes, embed_nbytes)


MIXES: dict[str, Callable[[int, random.Random], AllocItem]] = {
    "packaged llava, 80 KB file": _fixed(80_000, 64 << 10),
    "LLaVA 1.5, 200 KB file": _fixed(200_000, 576 * 4096 * 2),
    "20 KB to 60 MB": image,
}


def pages(mix: str, seed: int) -> report.Row:
    """One mix of images, as extents and as pages."""
    rng = random.Random(seed)
    items = [MIXES[mix](number, rng) for number in range(_IMAGES)]
    sizes = [size for item in items for size in (item.embed_nbytes, item.data_nbytes)]
    extents = [extent_nbytes(size) for size in sizes]
    counts = [-(-size // PAGE_NBYTES) for size in extents]
    return {
        "images": mix,
        "unused % extents": 100 * (1 - sum(sizes) / sum(extents)),
        "unused % pages": 100 * (1 - sum(sizes) / (PAGE_NBYTES * sum(counts))),
        "take and free us extents": _extents_us(extents),
        "take and free us pages": _pages_us(counts),
    }


def _extents_us(sizes: Sequence[int]) -> float:
    free = FreeExtents(2 * sum(sizes))
    started_s = time.perf_counter()
    allocated = [(free.alloc(size), size) for size in sizes]
    for offset, size in allocated:
        assert offset is not None
        free.free(offset, size)
    return (time.perf_counter() - started_s) / len(sizes) * 1e6


def _pages_us(counts: Sequence[int]) -> float:
    free = list(range(2 * sum(counts)))
    started_s = time.perf_counter()
    allocated = []
    for count in counts:
        allocated.append(free[-count:])
        del free[-count:]
    for numbers in allocated:
        free += numbers
    return (time.perf_counter() - started_s) / len(counts) * 1e6
