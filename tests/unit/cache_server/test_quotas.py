"""Budgets of compressed bytes and embeddings that live requests lease."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from mmserve.cache_server.entries import Lease
from mmserve.cache_server.quotas import LeaseBudgets
from mmserve.cache_server.table import MediaTable
from mmserve.ipc.arena import extent_nbytes
from mmserve.messages.cache import AllocItem
from tests.fakes.pictures.marks import NoMarks

ONE = extent_nbytes(100)


def _slots(data: int = 1 << 20, embeds: int = 1 << 20) -> MediaTable:
    return MediaTable(
        1 << 20,
        first_generation=1,
        first_item_id=1,
        first_token=1 << 33,
        arena=NoMarks(),
        budgets=LeaseBudgets(data, embeds),
    )


def _item(number: int) -> AllocItem:
    return AllocItem(number.to_bytes(16, "little"), 4, 100, 100)


def _lease(number: int) -> Lease:
    return Lease("http-0", f"r{number}")


def test_compressed_bytes_are_refused_until_earlier_ones_are_encoded() -> None:
    table = _slots(data=2 * ONE)
    reply = table.alloc(_lease(1), [_item(1), _item(2)])
    assert table.alloc(_lease(2), [_item(3)]).refused == "full"
    first = reply.records[0].item_id
    table.set_data(_lease(1), [first], ok=True)
    table.get_embed("visual", [first])
    table.set_embed("visual", [first], [True])
    assert table.budgets.data.used_nbytes == ONE
    assert table.alloc(_lease(2), [_item(3)]).refused == ""
    assert table.budgets.embeds.used_nbytes == 3 * ONE


def test_a_request_larger_than_a_budget_is_too_large() -> None:
    assert _slots(data=ONE).alloc(_lease(1), [_item(1), _item(2)]).refused == "too_large"
    assert _slots(embeds=ONE).alloc(_lease(1), [_item(1), _item(2)]).refused == "too_large"


def test_an_entry_counts_once_however_many_leases_it_has_and_not_without() -> None:
    table = _slots(data=ONE)
    for number in (1, 2, 3):
        assert table.alloc(_lease(number), [_item(7)]).refused == ""
    assert table.budgets.data.used_nbytes == ONE
    for number in (1, 2, 3):
        table.release(_lease(number))
    assert table.budgets.data.used_nbytes == table.budgets.embeds.used_nbytes == 0
    assert table.budgets.data.peak_nbytes == ONE


@settings(max_examples=80)
@given(seed=st.integers(0, 1 << 30))
def test_budgets_always_equal_the_bytes_of_leased_entries(seed: int) -> None:
    draw, table = random.Random(seed), _slots(data=4 * ONE, embeds=6 * ONE)
    for _ in range(60):
        lease, items = _lease(draw.randrange(4)), [_item(draw.randrange(8)) for _ in range(2)]
        match draw.randrange(5):
            case 0 | 1:
                table.alloc(lease, list(dict.fromkeys(items)))
            case 2:
                table.release(lease)
            case 3:
                for item in list(table._store.by_id.values()):
                    if item.writer is not None:
                        table.set_data(item.writer, [item.item_id], ok=draw.random() < 0.8)
            case 4:
                ids = [item.item_id for item in table._store.by_id.values()]
                table.get_embed("visual", ids)
                table.set_embed("visual", ids, [draw.random() < 0.7 for _ in ids])
        held = [item for item in table._store.by_id.values() if item.num_leases]
        assert table.budgets.data.used_nbytes == ONE * sum(item.data is not None for item in held) <= 4 * ONE
        assert table.budgets.embeds.used_nbytes == ONE * len(held) <= 6 * ONE
    for number in range(4):
        table.release(_lease(number))
    assert table.budgets.data.used_nbytes == table.budgets.embeds.used_nbytes == 0
