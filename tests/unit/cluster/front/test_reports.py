"""The listener's beginning and end. What it hears: tests/integration/router/test_reports.py."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any

import pytest
import zmq.asyncio

from mmserve.cluster.front import reports
from mmserve.cluster.front.reports import ReportListener
from mmserve.cluster.scale.cluster import Cluster
from mmserve.ipc.links.cluster_key import ClusterKey


def test_the_connection_of_a_replica_that_has_just_left_is_closed_before_the_listener_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The end of a context waits for its sockets, and meanwhile the event loop could close none."""
    sockets: list[Any] = []
    open_at_end: list[Any] = []

    class Watched(zmq.asyncio.Context):
        def socket(self, *arguments: Any, **options: Any) -> Any:
            sockets.append(super().socket(*arguments, **options))
            return sockets[-1]

        def term(self) -> None:
            open_at_end.extend(each for each in sockets if not each.closed)
            for each in open_at_end:
                each.close(linger=0)
            super().term()

    async def test() -> None:
        listener = ReportListener(Cluster(), ClusterKey.of(bytes(32)))
        listener.set({"a": "tcp://127.0.0.1:9"})
        await asyncio.sleep(0)
        listener.set({})
        await listener.aclose()

    monkeypatch.setattr(zmq.asyncio, "Context", Watched)
    asyncio.run(test())
    assert sockets
    assert not open_at_end


def test_a_connection_that_cannot_be_made_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As while the process has no descriptor left."""
    tries: list[int] = []

    async def test() -> None:
        made = asyncio.Event()

        class Full(zmq.asyncio.Context):
            def socket(self, *arguments: Any, **options: Any) -> Any:
                tries.append(len(tries))
                if len(tries) < 3:
                    raise zmq.ZMQError(errno.EMFILE)
                made.set()
                return super().socket(*arguments, **options)

        monkeypatch.setattr(zmq.asyncio, "Context", Full)
        listener = ReportListener(Cluster(), ClusterKey.of(bytes(32)))
        listener.set({"a": "tcp://127.0.0.1:9"})
        try:
            async with asyncio.timeout(20):
                await made.wait()
        finally:
            await listener.aclose()

    monkeypatch.setattr(reports, "_AGAIN_S", 0.001)
    with caplog.at_level(logging.WARNING):
        asyncio.run(test())
    assert tries == [0, 1, 2]
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("nothing is heard from a, which is tried again every second: ")
