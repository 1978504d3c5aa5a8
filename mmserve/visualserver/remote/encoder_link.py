"""A visual server's end of the connection to one encoder. Lives on the event loop."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from dataclasses import dataclass

from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.visualserver.images import Image
from mmserve.visualserver.remote.choice import Candidate, Pace
from mmserve.visualserver.remote.frames import (
    BrokenEncoderLink,
    Direction,
    Encode,
    Fail,
    Hello,
    Message,
    Ping,
    Result,
    Session,
    digest,
)
from mmserve.visualserver.remote.streams import AsyncStream

_MAX_ROWS_NBYTES = 1 << 30
"""A longer result ends the connection."""
logger = logging.getLogger(__name__)


class NotEncoded(Exception):
    """This encoder has no rows for the picture, for the reason given. Another one, or this machine, may have."""


@dataclass
class _Job:
    image: Image
    done: asyncio.Future[None]
    sent_s: float


class Place:
    """Room for one picture at an encoder, from its choice until its answer."""

    def __init__(self, link: EncoderLink, nbytes: int) -> None:
        self.link, self._nbytes = link, nbytes
        link.num_places += 1
        link.unanswered_nbytes += nbytes

    def close(self) -> None:
        """Idempotent."""
        if self._nbytes:
            self.link.num_places -= 1
            self.link.unanswered_nbytes -= self._nbytes
            self._nbytes = 0


class EncoderLink:
    """``encode`` may be called for several pictures at once, each with a ``place``."""

    def __init__(self, stream: AsyncStream, session: Session, hello: Hello, incoming: Direction, arena: Arena) -> None:
        self.name = hello.name
        self._stream, self._hello, self._arena = stream, hello, arena
        self._outgoing, self._incoming = Direction(session.to_encoder), incoming
        self._numbers = itertools.count(1)
        self._jobs: dict[int, _Job] = {}
        self.num_places = 0
        self.unanswered_nbytes = 0
        """Of ``num_places`` compressed pictures that were chosen for this encoder, and that it has not answered."""
        self._pace = Pace()
        self._writing = asyncio.Lock()

    def candidate(self) -> Candidate:
        return Candidate(self.name, self.num_places, self._pace)

    def has_room(self, nbytes: int) -> bool:
        """For a compressed picture of so many bytes."""
        return self.num_places < self._hello.slots and self.unanswered_nbytes + nbytes <= self._hello.credit

    def place(self, nbytes: int) -> Place:
        """For a picture that ``has_room``: nobody else gets this room."""
        return Place(self, nbytes)

    async def encode(self, image: Image) -> None:
        """Send the picture and wait until its rows are in its extent. Raises NotEncoded, also if the link ends."""
        number = next(self._numbers)
        job = self._jobs[number] = _Job(image, asyncio.get_running_loop().create_future(), time.monotonic())
        try:
            await self._send(number, image)
            await job.done
        except (StaleHandle, BrokenEncoderLink) as error:
            raise NotEncoded(str(error)) from None
        finally:
            del self._jobs[number]
            if not job.done.cancel() and not job.done.cancelled():
                job.done.exception()  # it may have come while the picture was sent

    async def _send(self, number: int, image: Image) -> None:
        data = self._arena.readable(image.data)
        found = await asyncio.to_thread(digest, data)
        self._arena.check(image.data)
        message = Encode(job=number, processing=image.processing, key=image.key, nbytes=len(data), digest=found)
        async with self._writing:
            await self._stream.send(self._outgoing.frame(message), data)

    async def answer(self, message: Message) -> None:
        """Send a message without a payload."""
        async with self._writing:
            await self._stream.send(self._outgoing.frame(message))

    def close(self) -> None:
        """End the connection: ``receive`` raises."""
        self._stream.close()

    async def receive(self) -> None:
        """Take results until the connection ends. Raises BrokenEncoderLink; all waiting ``encode`` calls raise too.
        Nobody sends any more then, so the socket may be closed."""
        try:
            while True:
                message = await self._stream.message(self._incoming)
                if isinstance(message, Result):
                    await self._take(message)
                elif isinstance(message, Fail):
                    self._fail(message.job, message.reason)
                elif not isinstance(message, Ping):
                    raise BrokenEncoderLink(f"a {type(message).__name__} at the wrong time")
        finally:
            self.close()  # ends a send that waits
            for number in list(self._jobs):
                self._fail(number, "the encoder has gone")
            async with self._writing:
                pass

    async def _take(self, result: Result) -> None:
        job = self._jobs.get(result.job)
        if result.nbytes > _MAX_ROWS_NBYTES:
            raise BrokenEncoderLink(f"a result of {result.nbytes} bytes")
        if job is None or job.image.embed.nbytes != result.nbytes:
            await self._stream.skip(result.nbytes)
            self._fail(result.job, f"a result of {result.nbytes} bytes, which is not what the picture has room for")
            return
        began = False
        try:
            with self._arena.writing(job.image.embed) as payload:
                began = True
                await self._stream.fill(payload)
                if await asyncio.to_thread(digest, payload) != result.digest:
                    raise BrokenEncoderLink("rows that were changed on the way")
        except StaleHandle as error:
            if not began:  # otherwise the whole result was read
                await self._stream.skip(result.nbytes)
            self._fail(result.job, str(error))
            return
        if result.compute_s:  # else it had the rows
            self._pace.encoded(result.compute_s)
        elapsed_s = time.monotonic() - job.sent_s - result.here_s
        self._pace.transferred(result.nbytes + job.image.data.nbytes, elapsed_s)
        if not job.done.done():
            job.done.set_result(None)

    def _fail(self, number: int, reason: str) -> None:
        job = self._jobs.get(number)
        if job is not None and not job.done.done():
            job.done.set_exception(NotEncoded(reason))
