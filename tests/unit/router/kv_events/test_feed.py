"""Batches are numbered so that a restart of the engine shows, as in vLLM."""

from __future__ import annotations

from array import array
from typing import Any

from mmserve.router.kv_cache.manager import KvCacheManager
from mmserve.router.kv_events.feed import EventFeed
from mmserve.router.kv_events.recorder import BlockRecorder
from tests.fakes.http.kv_subscriber import ClearedEvent, StoredEvent, decode


class Published:
    def __init__(self) -> None:
        self.batches: list[tuple[int, Any]] = []

    def publish(self, number: int, payload: bytes) -> None:
        self.batches.append((number, decode(payload)))


def test_a_start_begins_with_an_empty_cache_and_number_0() -> None:
    """llm-d takes a number that goes back for a restart; with one that goes on it would wait for what never comes."""
    published: Any = Published()
    feed = EventFeed(published, BlockRecorder(16, 0), "map", lambda: 5.0)
    kv = KvCacheManager(8, 16, feed.recorder)
    table, tokens = kv.allocate(32, kv.match_prefix(array("q"))), array("q", range(32))
    assert table is not None
    for num_tokens in (0, 16, 16, 32):  # the third step fills no block
        kv.cache_full_blocks(table, tokens, num_tokens)
        feed.planned()
        feed.computed()
    numbers = [number for number, _ in published.batches]
    assert numbers == [0, 1, 2]
    kinds = [type(batch.events[0]) for _, batch in published.batches]
    assert kinds == [ClearedEvent, StoredEvent, StoredEvent]
    assert published.batches[0][1].ts == 5.0
