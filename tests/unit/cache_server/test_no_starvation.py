"""Every request that fits an empty arena is served eventually, if other requests end."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.cache_server.entries import Lease
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.cache_server.table import MediaTable
from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem, AllocReply
from tests.fakes.pictures.marks import NoMarks

NBYTES = 64 * 64
LONG_S = 60.0

sizes = st.lists(st.integers(0, 600), min_size=1, max_size=3)


class _Counted(MediaTable):
    """How often an allocation was tried."""

    num_tried = 0

    def alloc(self, lease: Lease, items: Sequence[AllocItem]) -> AllocReply:
        self.num_tried += 1
        return super().alloc(lease, items)


def new_table(kind: type[MediaTable] = MediaTable) -> SharedMediaTable:
    table = SharedMediaTable(kind(NBYTES, first_generation=1, first_item_id=1, first_token=1 << 32, arena=NoMarks()))
    table.connect("http")
    return table


def items_of(request: int, data_nbytes: list[int]) -> list[AllocItem]:
    return [AllocItem(f"{request}-{n}".encode(), 4, size, 64) for n, size in enumerate(data_nbytes)]


def live(table: SharedMediaTable, request: int, data_nbytes: list[int], encode: bool) -> str:
    """Allocate with patience, write, perhaps have it encoded, release; why it was refused."""
    lease = Lease("http", str(request))
    reply = table.alloc(lease, items_of(request, data_nbytes), LONG_S).result()
    ids = [record.item_id for record in reply.records]
    table.set_data(lease, ids, True)
    if encode:
        table.set_embed("visual", ids, [True] * len(ids))
    table.release(lease)
    return reply.refused


@settings(max_examples=25, deadline=None)
@given(requests=st.lists(st.tuples(sizes, st.booleans()), min_size=2, max_size=12))
def test_every_allocation_succeeds_however_many_threads_ask_at_once(requests: list[tuple[list[int], bool]]) -> None:
    table = new_table()
    with ThreadPoolExecutor(len(requests)) as pool:
        lives = [pool.submit(live, table, number, *request) for number, request in enumerate(requests)]
        assert [each.result(LONG_S) for each in lives] == [""] * len(requests)
    assert table.snapshot().num_leases == 0
    assert live(table, 1000, [NBYTES - 400], encode=False) == ""


def test_a_large_request_is_not_starved_by_small_ones() -> None:
    """Each small one is there before the one before it has ended, so that there is never room for the large one. A
    bounded number of bytes passes it; then the small ones wait behind it."""
    table = new_table()
    live = [Lease("http", "first")]
    assert not table.alloc(live[0], items_of(1, [500]), 0.0).result().refused
    large = table.alloc(Lease("http", "large"), items_of(0, [NBYTES - 400]), LONG_S)
    num_passed = 0
    for number in range(2, 100):
        live.append(Lease("http", str(number)))
        num_passed += not table.alloc(live[-1], items_of(number, [500]), 0.0).result().refused
        table.release(live.pop(0))
    assert num_passed == (NBYTES - 400) // 700
    assert large.result().refused == ""


def test_space_is_looked_for_again_only_when_some_was_freed() -> None:
    """Every image that is written or encoded retries the waiting calls; looking for space costs every caller time."""
    table = new_table(_Counted)
    counted = table._table
    assert isinstance(counted, _Counted)
    first, large = Lease("http", "first"), Lease("http", "large")
    (record,) = table.alloc(first, items_of(1, [500]), 0.0).result().records
    waiting = table.alloc(large, items_of(0, [NBYTES - 400]), 9)
    num_tried = counted.num_tried
    for _ in range(5):
        table.set_data(first, [record.item_id], True)
    assert counted.num_tried == num_tried
    table.release(first)
    assert waiting.result().refused == ""
    assert counted.num_tried == num_tried + 1


def test_a_request_does_not_wait_for_its_own_cached_images_to_make_way() -> None:
    """Without leases, no release will free space; the new image does not fit between its own cached images."""
    table = new_table()
    eighth = NBYTES // 8 - (extent_nbytes(NBYTES // 8) - NBYTES // 8)
    cached = [AllocItem(b"cached %d" % number, 4, 64, eighth) for number in range(7)]
    offsets = [_encoded(table, f"before {number}", [picture]) for number, picture in enumerate(cached)]
    in_order = [picture for _, picture in sorted(zip(offsets, cached, strict=True))]
    new = AllocItem(b"new", 4, 64, 3 * NBYTES // 8)
    _encoded(table, "request", [in_order[2], in_order[5], new])


def test_its_cached_images_are_kept_while_space_freed_by_others_may_help() -> None:
    table = new_table()
    half = AllocItem(b"half", 4, 64, NBYTES // 2 - 400)
    _encoded(table, "before", [half])
    other = Lease("http", "other")
    table.alloc(other, [AllocItem(b"other", 4, 64, NBYTES // 4)], 0)
    waiting = table.alloc(Lease("http", "x"), [half, AllocItem(b"x", 4, 64, NBYTES // 4)], LONG_S)
    assert table.snapshot().num_waiting == 1
    table.release(other)
    assert [record.state for record in waiting.result().records] == ["hit", "write"]


def _encoded(table: SharedMediaTable, request: str, items: list[AllocItem]) -> int:
    """Makes them ready, without leases; where the last one's embedding lies."""
    lease = Lease("http", request)
    reply = table.alloc(lease, items, 5.0).result()
    assert not reply.refused
    ids = [record.item_id for record in reply.records]
    table.set_data(lease, ids, True)
    table.set_embed("visual", ids, [True] * len(ids))
    table.release(lease)
    return reply.records[-1].embed.offset
