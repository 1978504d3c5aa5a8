"""The table: replies to allocations, writers, eviction, and when space is freed."""

from __future__ import annotations

import pytest

from mmserve.cache_server.allocator.eviction_queue import EvictionPolicy, EvictionQueue
from mmserve.cache_server.entries import CacheEntry, Lease
from mmserve.cache_server.quotas import LeaseBudgets
from mmserve.cache_server.table import MediaTable
from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem, MediaRecord
from tests.fakes.pictures.marks import NoMarks

SIZE = 120
EXTENT = extent_nbytes(SIZE)


class _Bench:
    """A table with room for ``num_extents``, and what it erased."""

    def __init__(
        self,
        num_extents: int,
        budgets: LeaseBudgets | None = None,
        queue: EvictionQueue[CacheEntry] | None = None,
    ) -> None:
        self.marks = NoMarks()
        self.erased = self.marks.erased
        self.table = MediaTable(
            num_extents * EXTENT,
            first_generation=1000,
            first_item_id=500,
            first_token=1 << 32,
            arena=self.marks,
            budgets=budgets,
            queue=queue,
        )

    def encoded(self, *names: str) -> None:
        """Pictures whose embedding is ready, without leases."""
        for name in names:
            lease = Lease("http", f"make {name}")
            (record,) = self.table.alloc(lease, (item(name),)).records
            self.table.set_data(lease, (record.item_id,), True)
            self.table.set_embed("visual", (record.item_id,), (True,))
            self.table.release(lease)

    def alloc(self, request: str, *names: str, owner: str = "http") -> tuple[MediaRecord, ...]:
        return self.table.alloc(Lease(owner, request), tuple(item(name) for name in names)).records

    def refused(self, request: str, *names: str) -> str:
        return self.table.alloc(Lease("http", request), tuple(item(name) for name in names)).refused


def item(name: str, num_tokens: int = 4, nbytes: int = SIZE) -> AllocItem:
    return AllocItem(name.encode().ljust(16, b"\0"), num_tokens, nbytes, nbytes)


def test_the_first_writes_and_the_second_waits() -> None:
    bench = _Bench(4)
    (first,), (second,) = bench.alloc("a", "cat"), bench.alloc("b", "cat")
    assert (first.state, second.state) == ("write", "wait")
    assert (first.item_id, first.data, first.embed) == (second.item_id, second.data, second.embed)
    bench.table.set_data(Lease("http", "a"), (first.item_id,), True)
    assert bench.table.get_data(Lease("http", "b"), (first.item_id,)) == ("data",)


def test_another_request_becomes_the_writer_when_the_first_fails_or_ends() -> None:
    for end in ("fails", "releases", "dies"):
        bench = _Bench(4)
        (record,) = bench.alloc("a", "cat", owner="dying")
        bench.alloc("b", "cat")
        bench.alloc("c", "cat")
        if end == "fails":
            bench.table.set_data(Lease("dying", "a"), (record.item_id,), False)
        elif end == "releases":
            bench.table.release(Lease("dying", "a"))
        else:
            assert bench.table.drop_owner("dying", may_live=False) == 1
        assert bench.table.get_data(Lease("http", "b"), (record.item_id,)) == ("write",)
        assert bench.table.get_data(Lease("http", "c"), (record.item_id,)) == ("wait",)


def test_only_the_writer_can_set_data() -> None:
    bench = _Bench(4)
    (record,) = bench.alloc("a", "cat")
    bench.alloc("b", "cat")
    bench.table.set_data(Lease("http", "b"), (record.item_id,), True)
    assert bench.table.get_data(Lease("http", "b"), (record.item_id,)) == ("wait",)


def test_allocation_is_idempotent_and_releasing_twice_is_harmless() -> None:
    bench = _Bench(4)
    assert bench.alloc("a", "cat", "dog") == bench.alloc("a", "cat", "dog")
    assert bench.table.num_leases == 2
    assert bench.table.release(Lease("http", "a")) == 2
    assert bench.table.release(Lease("http", "a")) == 0
    assert bench.table.usage() == {("hole", "free"): (1, 4 * EXTENT)}


def test_allocation_is_all_or_nothing() -> None:
    bench = _Bench(4)
    bench.alloc("a", "cat")
    assert bench.refused("b", "dog", "fox") == "full"
    assert bench.table.items_of(Lease("http", "b")) == ()
    assert bench.alloc("c", "dog")[0].state == "write"


def test_too_large_and_full_are_different_refusals() -> None:
    bench = _Bench(4)
    assert bench.refused("a", "cat", "dog", "fox") == "too_large"
    assert bench.table.alloc(Lease("http", "a"), (item("big", nbytes=SIZE * 9),)).refused == "too_large"
    assert _Bench(0).refused("a", "cat") == "too_large"


def test_bytes_are_freed_as_soon_as_the_embedding_is_ready() -> None:
    bench = _Bench(2)
    (record,) = bench.alloc("a", "cat")
    bench.table.set_data(Lease("http", "a"), (record.item_id,), True)
    assert bench.table.get_embed("visual", (record.item_id,)) == ("pending",)
    assert bench.table.set_embed("visual", (record.item_id,), (True,)) == ("ready",)
    assert bench.erased == [record.data]
    assert bench.table.usage() == {("embed", "ready"): (1, EXTENT), ("hole", "free"): (1, EXTENT)}
    assert bench.alloc("b", "cat") == (MediaRecord(record.item_id, record.token_start, "hit", None, record.embed),)


def test_extents_freed_by_one_request_are_one_hole() -> None:
    bench = _Bench(12)
    names = ("cat", "dog", "fox", "elk")
    records = bench.alloc("a", *names)
    ids = [record.item_id for record in records]
    bench.table.set_data(Lease("http", "a"), ids, True)
    bench.table.set_embed("visual", ids, [True] * 4)
    assert {record.data for record in records} == set(bench.erased)
    assert bench.table.usage() == {("embed", "ready"): (4, 4 * EXTENT), ("hole", "free"): (1, 8 * EXTENT)}


def test_eviction_for_many_items_frees_no_more_than_they_need() -> None:
    bench = _Bench(20)
    names = [f"old {number}" for number in range(20)]
    bench.encoded(*names[:18])
    records = bench.alloc("new", *(f"new {number}" for number in range(6)))
    assert [record.state for record in records] == ["write"] * 6
    assert bench.table.counters["mm_cache_evictions", "embed"] == 10, "12 extents, of which 2 were free"
    assert [record.state for record in bench.alloc("look", *names[10:18])] == ["hit"] * 8


def test_a_failed_image_is_forgotten_but_its_extents_stay_until_its_last_lease_ends() -> None:
    bench = _Bench(4)
    (record,) = bench.alloc("a", "cat")
    bench.table.set_data(Lease("http", "a"), (record.item_id,), True)
    bench.table.get_embed("visual-0", (record.item_id,))
    bench.table.get_embed("visual-1", (record.item_id,))
    assert bench.table.set_embed("visual-0", (record.item_id,), (False,)) == ("gone",)
    assert bench.table.get_data(Lease("http", "a"), (record.item_id,)) == ("gone",)
    bench.table.release(Lease("http", "a"))
    assert bench.erased == []
    assert bench.table.set_embed("visual-1", (record.item_id,), (True,)) == ("gone",)
    assert set(bench.erased) == {record.data, record.embed}
    assert bench.alloc("b", "cat")[0].state == "write"


def test_a_ready_entry_survives_the_failure_of_another_encoder() -> None:
    bench = _Bench(4)
    (record,) = bench.alloc("a", "cat")
    bench.table.set_data(Lease("http", "a"), (record.item_id,), True)
    bench.table.set_embed("visual-0", (record.item_id,), (True,))
    assert bench.table.set_embed("visual-1", (record.item_id,), (False,)) == ("ready",)


def test_eviction_is_least_recently_used_first() -> None:
    bench = _Bench(4)
    bench.encoded("one", "two", "three")
    bench.alloc("touch", "one")
    bench.table.release(Lease("http", "touch"))
    bench.alloc("new", "four")
    assert [record.state for record in bench.alloc("look", "one", "three")] == ["hit", "hit"]
    assert bench.table.counters["mm_cache_evictions", "embed"] == 1


def test_the_queue_given_to_the_table_decides_the_order_of_eviction() -> None:
    """Last in, first out: the opposite of the default for equal entries."""
    newest_first = EvictionPolicy(priority=lambda entry, floor: -entry.num_uses, loss=lambda entry, age: age)
    bench = _Bench(5, queue=EvictionQueue(newest_first))
    bench.encoded("old", "new", "new")
    bench.alloc("a", "third", "fourth")
    assert [record.state for record in bench.alloc("b", "old")] == ["hit"]


def test_leased_and_unfinished_items_are_never_evicted() -> None:
    bench = _Bench(4)
    bench.encoded("ready")
    bench.alloc("hold", "ready")
    (writing,) = bench.alloc("write", "writing")
    assert bench.refused("new", "other") == "full"
    bench.table.set_data(Lease("http", "write"), (writing.item_id,), True)
    bench.table.get_embed("visual", (writing.item_id,))
    bench.table.release(Lease("http", "write"))
    assert bench.refused("new", "other") == "full", "an encoder is writing its rows"
    bench.table.set_embed("visual", (writing.item_id,), (True,))
    assert bench.alloc("new", "other")[0].state == "write"


def test_an_allocation_does_not_evict_its_own_items() -> None:
    bench = _Bench(3)
    bench.encoded("old", "new")
    assert bench.refused("a", "old", "new", "third") == "too_large"
    bench = _Bench(4)
    bench.encoded("old", "new")
    bench.alloc("x", "blocker")
    assert bench.refused("a", "old", "new", "third") == "full"


def test_token_ids_outlive_eviction_and_are_never_shared() -> None:
    bench = _Bench(2)
    (cat,) = bench.alloc("a", "cat")
    bench.table.release(Lease("http", "a"))
    (dog,) = bench.alloc("b", "dog")
    bench.table.release(Lease("http", "b"))
    (again,) = bench.alloc("c", "cat")
    assert again.token_start == cat.token_start
    assert abs(dog.token_start - cat.token_start) >= 4
    assert again.item_id != cat.item_id
    assert again.embed.generation not in (cat.embed.generation, dog.embed.generation)


def test_same_key_with_other_sizes_is_another_item() -> None:
    bench = _Bench(8)
    (small,) = bench.alloc("a", "cat")
    (large,) = bench.table.alloc(Lease("http", "a"), (item("cat", num_tokens=8),)).records
    assert small.item_id != large.item_id


def test_unknown_items_are_gone() -> None:
    bench = _Bench(2)
    assert bench.table.get_data(Lease("http", "a"), (1,)) == ("gone",)
    assert bench.table.get_embed("visual", (1,)) == ("gone",)
    assert bench.table.set_embed("visual", (1,), (True,)) == ("gone",)
    bench.table.set_data(Lease("http", "a"), (1,), True)


@pytest.mark.parametrize(
    ("limits", "helps"),
    [((10, 10), True), ((2, 10), False), ((10, 2), False)],
    ids=["room in pieces", "compressed bytes", "embeddings"],
)
def test_own_cached_images_are_evicted_only_if_that_helps(limits: tuple[int, int], helps: bool) -> None:
    """Not where a budget is all that is missing: without them the request would need more of it, not less."""
    bench = _Bench(10, budgets=LeaseBudgets(*(limit * EXTENT for limit in limits)))
    bench.encoded("old", "older")
    bench.alloc("other", "b")
    wanted = (item("old"), item("new"))
    assert bench.table.evict_own(wanted) is helps
    (record,) = bench.alloc("x", "old")
    assert record.state == ("write" if helps else "hit")


def test_own_cached_images_are_not_evicted_without_enough_bytes() -> None:
    bench = _Bench(6)
    bench.encoded("old")
    bench.alloc("other", "a", "b")
    assert not bench.table.evict_own((item("old"), item("new")))
    assert bench.alloc("x", "old")[0].state == "hit"
    assert not bench.table.evict_own((item("a"),)), "that is held"


def test_queries_and_hits_are_counted_for_the_items_a_lease_did_not_have() -> None:
    bench = _Bench(6)
    bench.encoded("cat", "dog")
    bench.table.take_counters()
    bench.alloc("a", "cat", "dog", "fox")
    bench.alloc("a", "cat", "dog", "fox")
    counters = bench.table.take_counters()
    assert (counters["mm_cache_queries",], counters["mm_cache_hits",]) == (3, 2)
    assert not bench.table.take_counters()


def test_an_evicted_embedding_is_erased() -> None:
    bench = _Bench(2)
    bench.encoded("cat")
    (cat,) = bench.alloc("a", "cat")
    bench.table.release(Lease("http", "a"))
    bench.erased.clear()
    bench.alloc("b", "dog")
    assert bench.erased == [cat.embed]


def test_evictions_are_counted_with_their_bytes() -> None:
    bench = _Bench(2)
    for number, name in enumerate(("cat", "dog", "fox"), 1):
        bench.encoded(name)
        bench.alloc(f"for {name}", f"big {name}")
        bench.table.release(Lease("http", f"for {name}"))
        counters = bench.table.counters
        assert (counters["mm_cache_evictions", "embed"], counters["mm_cache_evictions", "data"]) == (number, 0)
        assert counters["mm_cache_evicted_bytes",] == number * EXTENT
