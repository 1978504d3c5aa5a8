"""Connections that are lost, and a body that does not arrive: is the replica slow, or gone?"""

from __future__ import annotations

import asyncio
import socket
import time
from typing import Any

import pytest

from mmserve.cluster.front import upstream
from mmserve.cluster.front.upstream import ReplicaLost, Upstream

_BODY = bytes(8 << 20)
"""More than the kernel's buffers hold."""


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "SILENT_S", 0.1)


def _listener() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener


async def _sending(listener: socket.socket) -> tuple[asyncio.Task[int], socket.socket]:
    """A request, and the replica's end of its connection, from which nothing is read yet."""

    async def send() -> int:
        answer = await Upstream(f"http://127.0.0.1:{listener.getsockname()[1]}").send("POST", b"/", [], [_BODY])
        answer.close()
        return answer.status

    task = asyncio.create_task(send())
    connection, _ = await asyncio.get_running_loop().sock_accept(listener)
    return task, connection


def test_a_body_on_its_way_to_a_machine_that_is_gone_is_given_up() -> None:
    async def test() -> None:
        with _listener() as listener:
            sending, connection = await _sending(listener)
        with connection, pytest.raises(ReplicaLost, match="takes nothing of the body") as lost:
            async with asyncio.timeout(20):
                await sending
        assert lost.value.sent

    asyncio.run(test())


def test_one_that_takes_connections_and_answers_nothing_stands_still_and_one_that_is_gone_does_not() -> None:
    async def test() -> None:
        with _listener() as listener:
            replica = Upstream(f"http://127.0.0.1:{listener.getsockname()[1]}")
            assert await replica.stands_still(0.1)
        assert not await replica.stands_still(0.1)

    asyncio.run(test())


def test_a_replica_that_lets_a_body_wait_is_waited_for() -> None:
    async def test() -> None:
        with _listener() as listener:
            sending, connection = await _sending(listener)
            with connection:
                loop = asyncio.get_running_loop()
                tried, _ = await loop.sock_accept(listener)  # it was tried whether the replica can be reached
                tried.close()
                left = len(_BODY)
                while left > 0:
                    left -= len(await loop.sock_recv(connection, 1 << 20))
                await loop.sock_sendall(connection, b"HTTP/1.1 204 No Content\r\n\r\n")
                assert await sending == 204

    asyncio.run(test())


def test_what_may_move_is_taken_back_from_a_replica_that_keeps_its_connections() -> None:
    async def test() -> None:
        with _listener() as listener:
            replica = Upstream(f"http://127.0.0.1:{listener.getsockname()[1]}")
            moves, stays = (asyncio.create_task(replica.send("POST", b"/", [], may_move=may)) for may in (True, False))
            loop = asyncio.get_running_loop()
            accepted = [(await loop.sock_accept(listener))[0] for _ in range(2)]
            for connection in accepted:
                assert await loop.sock_recv(connection, 4096)
            replica.lose("stopped", time.monotonic() - 60)
            await asyncio.sleep(0)
            assert not moves.done(), "it is younger"
            replica.lose("stopped", time.monotonic())
            with pytest.raises(ReplicaLost, match="stopped") as lost:
                await moves
            assert lost.value.sent
            assert not stays.done()
            for connection in accepted:
                connection.close()
            with pytest.raises(ReplicaLost, match="ended"):
                await stays
            assert await replica.stands_still(within_s=0.05)

    asyncio.run(test())


def test_a_connection_that_is_lost_as_soon_as_it_is_made_is_a_lost_replica() -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        connect = loop.create_connection

        async def connect_and_lose(*arguments: Any, **named: Any) -> Any:
            transport, connection = await connect(*arguments, **named)
            transport.abort()
            while transport.get_extra_info("socket").fileno() >= 0:  # noqa: ASYNC110 - asyncio closes it soon
                await asyncio.sleep(0)
            return transport, connection

        with _listener() as listener, pytest.MonkeyPatch.context() as patched:
            patched.setattr(loop, "create_connection", connect_and_lose)
            with pytest.raises(ReplicaLost, match="cannot be reached"):
                await Upstream(f"http://127.0.0.1:{listener.getsockname()[1]}").send("POST", b"/", [], [])

    asyncio.run(test())
