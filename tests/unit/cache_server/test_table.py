"""The table: what allocation answers, who writes, what is evicted and when space comes back."""

from __future__ import annotations

import pytest

from mmserve.cache_server.entries import Lease
from mmserve.cache_server.quotas import LeaseBudgets
from mmserve.cache_server.table import MediaTable
from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem, MediaRecord
from mmserve.messages.media import Handle

SIZE = 120
EXTENT = extent_nbytes(SIZE)


class _Bench:
    """A table with room for ``num_extents``, and what it erased."""

    def __init__(self, num_extents: int, budgets: LeaseBudgets | None = None) -> None:
        self.erased: list[Handle] = []
        self.slots = MediaTable(
            num_extents * EXTENT,
            first_generation=1000,
            first_item_id=500,
            first_token=1 << 32,
            erase=self.erased.append,
            budgets=budgets,
        )

    def encoded(self, *names: str) -> None:
        """Pictures whose embedding is ready, without leases."""
        for name in names:
            lease = Lease("http", f"make {name}")
            (record,) = self.slots.alloc(lease, (item(name),)).records
            self.slots.set_data(lease, (record.item_id,), True)
            self.slots.set_embed("visual", (record.item_id,), (True,))
            self.slots.release(lease)

    def alloc(self, request: str, *names: str, owner: str = "http") -> tuple[MediaRecord, ...]:
        return self.slots.alloc(Lease(owner, request), tuple(item(name) for name in names)).records

    def refused(self, request: str, *names: str) -> str:
        return self.slots.alloc(Lease("http", request), tuple(item(name) for name in names)).refused


def item(name: str, num_tokens: int = 4, nbytes: int = SIZE) -> AllocItem:
    return AllocItem(name.encode().ljust(16, b"\0"), num_tokens, nbytes, nbytes)


def test_the_first_writes_and_the_second_waits() -> None:
    bench = _Bench(4)
    (first,), (second,) = bench.alloc("a", "cat"), bench.alloc("b", "cat")
    assert (first.state, second.state) == ("write", "wait")
    assert (first.item_id, first.data, first.embed) == (second.item_id, second.data, second.embed)
    bench.slots.set_data(Lease("http", "a"), (first.item_id,), True)
    assert bench.slots.get_data(Lease("http", "b"), (first.item_id,)) == ("data",)


def test_a_waiter_takes_over_when_the_writer_fails_or_goes() -> None:
    for end in ("fails", "releases", "dies"):
        bench = _Bench(4)
        (record,) = bench.alloc("a", "cat", owner="dying")
        bench.alloc("b", "cat")
        bench.alloc("c", "cat")
        if end == "fails":
            bench.slots.set_data(Lease("dying", "a"), (record.item_id,), False)
        elif end == "releases":
            bench.slots.release(Lease("dying", "a"))
        else:
            assert bench.slots.drop_owner("dying") == 1
        assert bench.slots.get_data(Lease("http", "b"), (record.item_id,)) == ("write",)
        assert bench.slots.get_data(Lease("http", "c"), (record.item_id,)) == ("wait",)


def test_only_the_writer_can_say_that_bytes_are_ready() -> None:
    bench = _Bench(4)
    (record,) = bench.alloc("a", "cat")
    bench.alloc("b", "cat")
    bench.slots.set_data(Lease("http", "b"), (record.item_id,), True)
    assert bench.slots.get_data(Lease("http", "b"), (record.item_id,)) == ("wait",)


def test_allocation_is_idempotent_and_releasing_twice_is_harmless() -> None:
    bench = _Bench(4)
    assert bench.alloc("a", "cat", "dog") == bench.alloc("a", "cat", "dog")
    assert bench.slots.num_leases == 2
    assert bench.slots.release(Lease("http", "a")) == 2
    assert bench.slots.release(Lease("http", "a")) == 0
    assert bench.slots.usage() == {("hole", "free"): (1, 4 * EXTENT)}


def test_allocation_is_all_or_nothing() -> None:
    bench = _Bench(4)
    bench.alloc("a", "cat")
    assert bench.refused("b", "dog", "fox") == "full"
    assert bench.slots.items_of(Lease("http", "b")) == ()
    assert bench.alloc("c", "dog")[0].state == "write"


def test_what_can_never_fit_is_told_apart_from_what_does_not_fit_now() -> None:
    bench = _Bench(4)
    assert bench.refused("a", "cat", "dog", "fox") == "too_large"
    assert bench.slots.alloc(Lease("http", "a"), (item("big", nbytes=SIZE * 9),)).refused == "too_large"
    assert _Bench(0).refused("a", "cat") == "too_large"


def test_bytes_are_given_back_as_soon_as_the_embedding_is_ready() -> None:
    bench = _Bench(2)
    (record,) = bench.alloc("a", "cat")
    bench.slots.set_data(Lease("http", "a"), (record.item_id,), True)
    assert bench.slots.get_embed("visual", (record.item_id,)) == ("pending",)
    assert bench.slots.set_embed("visual", (record.item_id,), (True,)) == ("ready",)
    assert bench.erased == [record.data]
    assert bench.slots.usage() == {("embed", "ready"): (1, EXTENT), ("hole", "free"): (1, EXTENT)}
    assert bench.alloc("b", "cat") == (MediaRecord(record.item_id, record.token_start, "hit", None, record.embed),)


def test_what_a_request_gives_back_is_one_hole() -> None:
    bench = _Bench(12)
    names = ("cat", "dog", "fox", "elk")
    records = bench.alloc("a", *names)
    ids = [record.item_id for record in records]
    bench.slots.set_data(Lease("http", "a"), ids, True)
    bench.slots.set_embed("visual", ids, [True] * 4)
    assert {record.data for record in records} == set(bench.erased)
    assert bench.slots.usage() == {("embed", "ready"): (4, 4 * EXTENT), ("hole", "free"): (1, 8 * EXTENT)}


def test_a_full_arena_makes_way_for_many_at_once_and_for_no_more_than_they_need() -> None:
    bench = _Bench(20)
    names = [f"old {number}" for number in range(20)]
    bench.encoded(*names[:18])
    records = bench.alloc("new", *(f"new {number}" for number in range(6)))
    assert [record.state for record in records] == ["write"] * 6
    assert bench.slots.counters["mm_cache_evictions", "embed"] == 10, "12 extents, of which 2 were free"
    assert [record.state for record in bench.alloc("look", *names[10:18])] == ["hit"] * 8


def test_a_failed_image_is_forgotten_but_its_extents_stay_until_nobody_can_be_writing_there() -> None:
    bench = _Bench(4)
    (record,) = bench.alloc("a", "cat")
    bench.slots.set_data(Lease("http", "a"), (record.item_id,), True)
    bench.slots.get_embed("visual-0", (record.item_id,))
    bench.slots.get_embed("visual-1", (record.item_id,))
    assert bench.slots.set_embed("visual-0", (record.item_id,), (False,)) == ("gone",)
    assert bench.slots.get_data(Lease("http", "a"), (record.item_id,)) == ("gone",)
    bench.slots.release(Lease("http", "a"))
    assert bench.erased == []
    assert bench.slots.set_embed("visual-1", (record.item_id,), (True,)) == ("gone",)
    assert set(bench.erased) == {record.data, record.embed}
    assert bench.alloc("b", "cat")[0].state == "write"


def test_what_is_ready_is_not_undone_by_another_encoders_failure() -> None:
    bench = _Bench(4)
    (record,) = bench.alloc("a", "cat")
    bench.slots.set_data(Lease("http", "a"), (record.item_id,), True)
    bench.slots.set_embed("visual-0", (record.item_id,), (True,))
    assert bench.slots.set_embed("visual-1", (record.item_id,), (False,)) == ("ready",)


def test_eviction_is_least_recently_used_first() -> None:
    bench = _Bench(4)
    bench.encoded("one", "two", "three")
    bench.alloc("touch", "one")
    bench.slots.release(Lease("http", "touch"))
    bench.alloc("new", "four")
    assert [record.state for record in bench.alloc("look", "one", "three")] == ["hit", "hit"]
    assert bench.slots.counters["mm_cache_evictions", "embed"] == 1


def test_leased_and_unfinished_items_are_never_evicted() -> None:
    bench = _Bench(4)
    bench.encoded("ready")
    bench.alloc("hold", "ready")
    (writing,) = bench.alloc("write", "writing")
    assert bench.refused("new", "other") == "full"
    bench.slots.set_data(Lease("http", "write"), (writing.item_id,), True)
    bench.slots.get_embed("visual", (writing.item_id,))
    bench.slots.release(Lease("http", "write"))
    assert bench.refused("new", "other") == "full", "an encoder is writing its rows"
    bench.slots.set_embed("visual", (writing.item_id,), (True,))
    assert bench.alloc("new", "other")[0].state == "write"


def test_an_allocation_does_not_evict_what_it_asks_for() -> None:
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
    bench.slots.release(Lease("http", "a"))
    (dog,) = bench.alloc("b", "dog")
    bench.slots.release(Lease("http", "b"))
    (again,) = bench.alloc("c", "cat")
    assert again.token_start == cat.token_start
    assert abs(dog.token_start - cat.token_start) >= 4
    assert again.item_id != cat.item_id
    assert again.embed.generation not in (cat.embed.generation, dog.embed.generation)


def test_same_key_with_other_sizes_is_another_item() -> None:
    bench = _Bench(8)
    (small,) = bench.alloc("a", "cat")
    (large,) = bench.slots.alloc(Lease("http", "a"), (item("cat", num_tokens=8),)).records
    assert small.item_id != large.item_id


def test_unknown_items_are_gone() -> None:
    bench = _Bench(2)
    assert bench.slots.get_data(Lease("http", "a"), (1,)) == ("gone",)
    assert bench.slots.get_embed("visual", (1,)) == ("gone",)
    assert bench.slots.set_embed("visual", (1,), (True,)) == ("gone",)
    bench.slots.set_data(Lease("http", "a"), (1,), True)


@pytest.mark.parametrize(
    ("limits", "helps"),
    [((10, 10), True), ((2, 10), False), ((10, 2), False)],
    ids=["room in pieces", "compressed bytes", "embeddings"],
)
def test_own_cached_images_make_way_only_where_that_helps(limits: tuple[int, int], helps: bool) -> None:
    """Not where a budget is all that is missing: without them the request would need more of it, not less."""
    bench = _Bench(10, budgets=LeaseBudgets(*(limit * EXTENT for limit in limits)))
    bench.encoded("old", "older")
    bench.alloc("other", "b")
    wanted = (item("old"), item("new"))
    assert bench.slots.evict_own(wanted) is helps
    (record,) = bench.alloc("x", "old")
    assert record.state == ("write" if helps else "hit")


def test_without_bytes_for_them_they_do_not_make_way() -> None:
    bench = _Bench(6)
    bench.encoded("old")
    bench.alloc("other", "a", "b")
    assert not bench.slots.evict_own((item("old"), item("new")))
    assert bench.alloc("x", "old")[0].state == "hit"
    assert not bench.slots.evict_own((item("a"),)), "that is held"
