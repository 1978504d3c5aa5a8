"""A visual server's end of a link, with an encoder that is played at the other end of a pair of sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from mmserve.ipc.arena import Arena, extent_nbytes
from mmserve.messages.media import Handle
from mmserve.visualserver.images import Image
from mmserve.visualserver.remote.encoder_link import EncoderLink, NotEncoded
from mmserve.visualserver.remote.frames import LENGTH, BrokenEncoderLink, Direction, Hello, Result, Session, digest
from mmserve.visualserver.remote.streams import AsyncStream

SESSION = Session.of(b"secret", b"n1", b"n2")
HELLO = Hello(name="encoder", facts={}, credit=1 << 30, slots=4)
PICTURE_NBYTES, ROWS_NBYTES = 4 << 20, 1000
"""No socket's buffer holds a picture."""


@pytest.fixture
def arena() -> Iterator[Arena]:
    with closing(Arena.create(8 << 20, when_used=True)) as arena:
        yield arena


def place_image(arena: Arena, data_nbytes: int) -> Image:
    data = Handle(1, 0, data_nbytes)
    embed = Handle(2, extent_nbytes(data_nbytes), ROWS_NBYTES)
    for handle in (data, embed):
        arena.open(handle)
    arena.write(data, bytes(data_nbytes))
    return Image(1, data, embed)


def link_over(sock: socket.socket, arena: Arena) -> EncoderLink:
    return EncoderLink(AsyncStream(sock, 60.0), SESSION, HELLO, Direction(SESSION.to_listener), arena)


def test_a_picture_that_is_being_sent_when_the_link_ends_does_not_wait(arena: Arena) -> None:
    async def play() -> None:
        here, there = socket.socketpair()
        there.setblocking(False)
        with here, there:
            link = link_over(here, arena)
            encoding = asyncio.create_task(link.encode(place_image(arena, PICTURE_NBYTES)))
            await asyncio.get_running_loop().sock_recv(there, 1)  # more of it than there is room for is under way
            there.send(LENGTH.pack(1 << 30))
            with pytest.raises(BrokenEncoderLink):
                await link.receive()
            assert encoding.done(), "it would use the descriptor that is closed now"
            with pytest.raises(NotEncoded):
                await encoding

    asyncio.run(play())


@pytest.mark.parametrize(("compute_s", "image_s"), [(0.0, None), (0.5, 0.5)])
def test_rows_that_an_encoder_had_say_nothing_of_its_pace(
    arena: Arena, compute_s: float, image_s: float | None
) -> None:
    async def play() -> None:
        here, there = socket.socketpair()
        with here, there:
            link = link_over(here, arena)
            receiving = asyncio.create_task(link.receive())
            rows = bytes(ROWS_NBYTES)
            result = Result(job=1, nbytes=len(rows), digest=digest(rows), here_s=0.0, compute_s=compute_s)
            encoding = asyncio.create_task(link.encode(place_image(arena, 10)))
            await asyncio.sleep(0)  # it has its number
            there.send(Direction(SESSION.to_listener).frame(result) + rows)
            await encoding
            assert link.candidate().pace.image_s == image_s
            link.close()
            await asyncio.gather(receiving, return_exceptions=True)

    asyncio.run(play())
