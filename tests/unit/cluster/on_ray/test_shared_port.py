from __future__ import annotations

import asyncio
import socket

from mmserve.cluster.on_ray.shared_port import listening, take_no_more

_CLIENTS = 20


async def _serving(sock: socket.socket, name: bytes) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(name)
        writer.close()

    return await asyncio.start_server(answer, sock=sock)


async def _answer(client: socket.socket) -> bytes:
    loop = asyncio.get_running_loop()
    with client:
        await loop.sock_sendall(client, b"?")
        return await loop.sock_recv(client, 10)


async def _new(port: int) -> bytes:
    client = socket.socket()
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    return await _answer(client)


def _connected(port: int) -> socket.socket:
    """By the kernel: nobody has accepted it yet."""
    client = socket.create_connection(("127.0.0.1", port))
    client.setblocking(False)
    return client


def test_who_leaves_a_port_serves_those_that_wait_there_and_all_later_ones_come_to_the_other() -> None:
    async def test() -> None:
        leaving = listening("127.0.0.1", 0)
        port = leaving.getsockname()[1]
        server = await _serving(leaving, b"leaving")
        async with await _serving(listening("127.0.0.1", port), b"staying"):
            early = [_connected(port) for _ in range(_CLIENTS)]
            leaves = asyncio.create_task(take_no_more(leaving))
            await asyncio.sleep(0)
            late = [asyncio.create_task(_new(port)) for _ in range(_CLIENTS)]
            await leaves
            server.close()
            assert set(await asyncio.gather(*late)) == {b"staying"}
            assert set(await asyncio.gather(*(_answer(each) for each in early))) == {b"leaving", b"staying"}

    asyncio.run(test())
