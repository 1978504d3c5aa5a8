"""What is done for a client ends with its connection."""

from __future__ import annotations

import asyncio

import pytest

from mmserve.httpserver.http.disconnect import WhileConnected
from tests.fakes.http.connection import Connection


def test_a_lost_connection_ends_the_body_without_an_error() -> None:
    async def test() -> None:
        connection, lost = Connection(), list[str]()
        asyncio.get_running_loop().call_soon(connection.lose)
        async with WhileConnected(connection.scope, lambda: lost.append("told")):
            await asyncio.Event().wait()
        assert lost == ["told"]
        task = asyncio.current_task()
        assert task is not None
        assert not task.cancelling()
        await asyncio.sleep(0)

    asyncio.run(test())


def test_a_connection_that_is_lost_already_ends_the_body() -> None:
    async def test() -> None:
        connection = Connection()
        connection.lose()
        async with WhileConnected(connection.scope, lambda: None):
            await asyncio.Event().wait()

    asyncio.run(asyncio.wait_for(test(), 10))


def test_nothing_is_called_after_the_body() -> None:
    async def test() -> None:
        connection, lost = Connection(), list[str]()
        async with WhileConnected(connection.scope, lambda: lost.append("told")):
            pass
        connection.lose()
        await asyncio.sleep(0)
        assert lost == []

    asyncio.run(test())


def test_a_cancellation_from_elsewhere_is_not_hidden() -> None:
    async def test() -> None:
        async def serve() -> None:
            async with WhileConnected(connection.scope, lambda: None):
                started.set()
                await asyncio.Event().wait()

        connection, started = Connection(), asyncio.Event()
        serving = asyncio.create_task(serve())
        await started.wait()
        serving.cancel()
        connection.lose()
        with pytest.raises(asyncio.CancelledError):
            await serving

    asyncio.run(test())
