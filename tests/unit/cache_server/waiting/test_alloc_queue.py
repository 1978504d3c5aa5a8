"""Smaller requests pass waiting ones, within bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmserve.cache_server.entries import Lease
from mmserve.cache_server.entry_store import arena_nbytes
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.cache_server.table import MediaTable
from mmserve.cache_server.waiting.alloc_queue import MAX_PASSES, AllocQueue, QueuedAlloc
from mmserve.cache_server.waiting.pending import Answered, PendingCall
from mmserve.messages.cache import AllocItem
from tests.fakes.pictures.marks import NoMarks

NBYTES = 64 * 256
LONG_S = 60.0
sizes = st.integers(0, NBYTES // 3)


def _table() -> SharedMediaTable:
    media = MediaTable(NBYTES, first_generation=1, first_item_id=1, first_token=1 << 32, arena=NoMarks())
    table = SharedMediaTable(media)
    table.connect("http")
    return table


def _item(name: object, nbytes: int) -> AllocItem:
    return AllocItem(str(name).encode().ljust(16), 4, nbytes, 64)


def _queued(nbytes: int) -> QueuedAlloc:
    return QueuedAlloc(Lease("http", "r"), (), nbytes)


def test_a_large_request_that_waits_does_not_keep_out_what_fits_beside_it() -> None:
    table = _table()
    table.alloc(Lease("http", "holder"), [_item("half", NBYTES // 2)], 0.0)
    large = table.alloc(Lease("http", "large"), [_item("large", 3 * NBYTES // 4)], LONG_S)
    assert table.alloc(Lease("http", "small"), [_item("small", 100)], 0.0).result().refused == ""
    table.release(Lease("http", "holder"))
    table.release(Lease("http", "small"))
    assert large.result().refused == ""


@given(
    waiting=st.lists(sizes, min_size=1, max_size=4),
    passing=st.lists(sizes, max_size=40),
)
def test_what_passes_a_request_is_bounded(waiting: list[int], passing: list[int]) -> None:
    queue = AllocQueue()
    queued = [_queued(nbytes) for nbytes in waiting]
    for each in queued:
        queue.append(each)
    passed = 0
    for nbytes in passing:
        if queue.may_pass(nbytes):
            queue.passed(nbytes)
            passed += nbytes
    assert all(passed <= each.nbytes for each in queued)
    assert all(each.passed_nbytes == passed for each in queued)


def test_passes_are_also_bounded_in_number() -> None:
    queue = AllocQueue()
    queue.append(_queued(1 << 40))
    for _ in range(MAX_PASSES):
        assert queue.may_pass(1)
        queue.passed(1)
    assert not queue.may_pass(1)
    assert queue.may_pass(1, queue.of(Lease("http", "r"))[0]), "nobody is ahead of the first"


@given(st.lists(st.tuples(sizes, st.booleans()), min_size=1, max_size=60))
def test_a_waiting_request_is_served_however_many_small_ones_keep_coming(small: list[tuple[int, bool]]) -> None:
    """There is always a small one before the one before it has ended. Each ends in its turn; some would wait."""
    table = _table()
    live = [Lease("http", "first")]
    table.alloc(live[0], [_item("first", NBYTES // 2)], 0.0)
    large = Lease("http", "large")
    nbytes = 3 * NBYTES // 4
    waiting = table.alloc(large, [_item("large", nbytes)], LONG_S)
    assert isinstance(waiting, PendingCall)
    served: list[bool] = []
    waiting.when_done(lambda: served.append(True))
    passed_nbytes = 0
    for number, (size, waits) in enumerate(small):
        lease, item = Lease("http", str(number)), _item(number, size)
        reply = table.alloc(lease, [item], LONG_S if waits else 0.0)
        if not served and isinstance(reply, Answered) and not reply.result().refused:
            passed_nbytes += arena_nbytes([item])
        live.append(lease)
        table.release(live.pop(0))
    assert passed_nbytes <= arena_nbytes([_item("large", nbytes)])
    while live:
        table.release(live.pop(0))
    assert served
    assert waiting.result().refused == ""
    table.release(large)
    assert table.snapshot().num_waiting == 0


def test_a_request_that_becomes_the_first_is_tried_again() -> None:
    """As the first it may evict its own cached images; it had no leave to while it was behind another."""
    queue = AllocQueue()
    first, second = _queued(10), _queued(10)
    queue.append(first)
    queue.append(second)
    second.num_freed_at_try = 7
    queue.remove(first)
    assert queue.is_first(second)
    assert second.num_freed_at_try == -1
