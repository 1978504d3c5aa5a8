"""What the operator is told when the arena is too small."""

from __future__ import annotations

import dataclasses

import pytest

from mmserve.cache_server.item import Lease
from mmserve.cache_server.shortage import Shortage
from mmserve.cache_server.slots import Slots
from mmserve.cache_server.table import Table
from tests.fakes.cache import alloc_item


def _slots(nbytes: int) -> Slots:
    return Slots(nbytes, first_generation=1, first_item_id=1, first_token=1 << 32, erase=lambda handle: None)


@pytest.mark.parametrize("nbytes", [0, 256])
def test_more_than_the_whole_arena_is_refused_for_good_and_said_once(
    nbytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table(_slots(nbytes))
    table.hello("http")
    shortage = Shortage(nbytes)
    shortage.look(table.snapshot())
    assert not caplog.records
    for _ in range(3):
        assert table.alloc(Lease("http", "r"), [alloc_item("cat")], wait_s=30.0).refused == "too_large"
        shortage.look(table.snapshot())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "--mm-cache-gb" in caplog.text


def test_waiting_for_space_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    shortage, idle = Shortage(1 << 20), Table(_slots(1 << 20)).snapshot()
    for num_waiting in (0, 1, 0, 2):
        shortage.look(dataclasses.replace(idle, num_waiting=num_waiting))
    assert len(caplog.records) == 1
    assert "wait for space" in caplog.text
