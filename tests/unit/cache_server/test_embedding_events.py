"""Which embeddings come and go, and how that is told."""

from __future__ import annotations

from typing import Any

import msgspec

from mmserve.cache_server.embedding_events import EmbeddingFeed
from mmserve.cache_server.entries import Lease
from tests.unit.cache_server.test_table import _Bench, item


class _Published:
    def __init__(self) -> None:
        self.batches: list[tuple[int, list[Any]]] = []

    def publish(self, number: int, payload: bytes) -> None:
        seconds, events, rank = msgspec.msgpack.decode(payload)
        assert (seconds, rank) == (5.0, 0)
        self.batches.append((number, events))


def test_an_embedding_is_told_when_it_is_complete_and_when_it_has_gone() -> None:
    bench, published = _Bench(2), _Published()
    bench.table.follow_embeddings()
    feed = EmbeddingFeed(published, "map", lambda: 5.0)
    bench.encoded("cat")
    feed.publish(bench.table.take_embedding_changes())
    feed.publish(bench.table.take_embedding_changes())
    (record,) = bench.alloc("fails", "dog")
    bench.table.set_data(Lease("http", "fails"), (record.item_id,), True)
    bench.table.set_embed("visual", (record.item_id,), (False,))
    bench.table.release(Lease("http", "fails"))
    bench.encoded("bird", "cow")
    feed.publish(bench.table.take_embedding_changes())
    keys = {name: item(name).key.hex() for name in ("cat", "bird", "cow")}
    start = [{"type": "AllEmbeddingsCleared"}]
    stored = {name: {"type": "EmbeddingStored", "key": key, "tokens": 4} for name, key in keys.items()}
    removed = {name: {"type": "EmbeddingRemoved", "key": key} for name, key in keys.items()}
    assert published.batches[:2] == [(0, start), (1, [stored["cat"]])]
    ((number, events),) = published.batches[2:]
    assert number == 2
    assert [event for event in events if event["type"] == "EmbeddingStored"] == [stored["bird"], stored["cow"]]
    assert removed["cat"] in events
    assert bench.table.look_up(item("cow")).state == "embedding"


def test_each_event_is_an_array_for_subscribers_that_read_no_maps() -> None:
    published = _Published()
    feed = EmbeddingFeed(published, "array", lambda: 5.0)
    feed.publish([(b"\x0a\x0b", 4), (b"\x0a\x0b", 0)])
    assert published.batches == [
        (0, [["AllEmbeddingsCleared"]]),
        (1, [["EmbeddingStored", "0a0b", 4], ["EmbeddingRemoved", "0a0b"]]),
    ]


def test_nothing_is_kept_if_nobody_follows() -> None:
    bench = _Bench(2)
    bench.encoded("cat")
    assert bench.table.take_embedding_changes() == []
