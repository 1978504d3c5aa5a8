"""The cache server's messages to the operator when the arena is too small."""

from __future__ import annotations

import dataclasses

import pytest

from mmserve.cache_server.run import SpaceWarning
from mmserve.cache_server.shared_table import SharedMediaTable
from mmserve.cache_server.table import MediaTable
from tests.fakes.pictures.marks import NoMarks


def test_waiting_for_space_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    table = MediaTable(1 << 20, first_generation=1, first_item_id=1, first_token=1 << 32, arena=NoMarks())
    warning, idle = SpaceWarning(1 << 20), SharedMediaTable(table).snapshot()
    for num_waiting in (0, 1, 0, 2):
        warning.check(dataclasses.replace(idle, num_waiting=num_waiting))
    assert len(caplog.records) == 1
    assert "wait for space" in caplog.text
    assert "--mm-cache-gb" in caplog.text
