"""``benchmarks.images.ipc``: each transfer method delivers the payload to every reader."""

from __future__ import annotations

import pytest

from benchmarks.images.handover.ways import WAYS
from benchmarks.images.ipc import measure
from mmserve.ipc.arena import Arena


@pytest.mark.parametrize("way", WAYS)
def test_every_reader_gets_the_payload(way: str) -> None:
    arena = Arena.create(1 << 16)
    row = measure(way, 2, b"\x01" + bytes(9_998) + b"\x02", 2, arena)
    arena.close()
    assert row["MB copied"] == pytest.approx(0.01 * row["copies"])  # type: ignore[operator]
