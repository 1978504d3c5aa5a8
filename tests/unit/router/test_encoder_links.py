"""Which visual server encodes an image: always the same, and all of them have work whatever requests look like."""

from __future__ import annotations

from collections import Counter

import pytest

from mmserve.cache_server.entries import Lease
from mmserve.cache_server.table import MediaTable
from mmserve.messages.cache import AllocItem
from mmserve.router.encoder_links import encoder_for
from tests.fakes.pictures.marks import NoMarks


@pytest.mark.parametrize("visual_workers", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("images", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("first_item_id", [1, 1 << 40])
def test_equal_requests_are_spread_over_all_visual_servers(
    visual_workers: int, images: int, first_item_id: int
) -> None:
    slots = MediaTable(1 << 30, first_generation=1, first_item_id=first_item_id, first_token=1 << 32, arena=NoMarks())
    counts: Counter[int] = Counter()
    for request in range(1000):
        items = [AllocItem(b"%d %d" % (request, image), 1, 64, 64) for image in range(images)]
        records = slots.alloc(Lease("http", str(request)), items).records
        counts[encoder_for(records[0].item_id, visual_workers)] += 1
    assert len(counts) == visual_workers
    assert max(counts.values()) < 1.5 * 1000 / visual_workers


def test_an_image_always_goes_to_the_same_visual_server() -> None:
    assert {encoder_for(12345, 7) for _ in range(3)} == {encoder_for(12345, 7)}
