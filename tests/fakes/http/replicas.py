"""Servers that answer a front as mmserve does, say one letter an event, and can be told to fail."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mmserve.cluster.front.run import Front, FrontOptions
from mmserve.ipc.links.cluster_key import ClusterKey
from mmserve.messages.relay import BY_KEY, GIVEN_UP, RELAY_HEADER, SERVER_HEADER, Relay, Sampled, comment, opened
from tests.fakes.http.http_server import serving

KEY = ClusterKey.of(bytes(32))
TEXT = "hello world"


class Died(Exception):
    """Ends the connection in the middle of an answer."""


@dataclass
class FakeReplica:
    """``dies_after``: letters; ``status``: of a refusal. ``relays``: of the requests so far."""

    dies_after: int | None = None
    then_refuses: bool = False
    """It has died once, and takes nothing now."""
    breaks_event: bool = False
    gives_up: bool = False
    """In place of dying."""
    damages: bool = False
    """In place of dying: a comment that is none, which says what would not be believed."""
    numbers: str = ""
    """Digest of what decides about its text."""
    becomes: str | None = None
    """That digest once it has died."""
    misdirected: int = 0
    """Requests that it has refused for their digest."""
    caches_by_key: bool = False
    status: int = 200
    refuses: int | None = None
    """Requests that get that status; None: all."""
    stops_after: int | None = None
    """Letters. Then its processes are stopped: it answers nothing any more, and keeps its connections."""
    is_stopped: bool = False
    asked_while_stopped: asyncio.Event = field(default_factory=asyncio.Event)
    holds: bool = False
    first_may_come: asyncio.Event | None = None
    """Before it, no stream has an event."""
    waiting: int = 0
    """Streams that wait for that."""
    relays: list[Relay] = field(default_factory=list)
    sampled: list[tuple[Sampled, ...]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    disconnected: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.body()
        if self.is_stopped:
            self.asked_while_stopped.set()
            return await self._stand_still(receive)
        self.paths.append(scope["path"])
        self.headers.append(dict(request.headers))
        if self.status != 200 and self.refuses != 0:
            self.refuses = None if self.refuses is None else self.refuses - 1
            return await Response(b"busy", self.status, {"retry-after": "7"})(scope, receive, send)
        if (header := request.headers.get(RELAY_HEADER)) is None:
            if self.dies_after is not None:
                await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"9")]})
                await send({"type": "http.response.body", "body": b"half", "more_body": True})
                raise Died
            return await Response(json.dumps({"path": scope["path"]}), media_type="application/json")(
                scope, receive, send
            )
        relay, sampled = opened(header, body, KEY.fronts)
        if relay.numbers not in ("", self.numbers):
            self.misdirected += 1
            return await Response(b"other numbers", 421)(scope, receive, send)
        self.relays.append(relay)
        self.sampled.append(sampled)
        if json.loads(body[: relay.body_nbytes]).get("stream"):
            return await self._stream(len(sampled), relay.num_events, receive, send)
        await self._whole(send)

    async def _stand_still(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.disconnected.set()

    async def _whole(self, send: Send) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(TEXT))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": TEXT[:4].encode(), "more_body": True})
        if self.dies_after is not None:
            raise Died
        await send({"type": "http.response.body", "body": TEXT[4:].encode(), "more_body": False})

    async def _stream(self, num_sampled: int, num_events: int, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream"),
            (SERVER_HEADER.encode(), f"{self.numbers} {BY_KEY * self.caches_by_key}".encode()),
        ]
        if self.first_may_come is not None:
            self.waiting += 1
            await self.first_may_come.wait()
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for index, letter in enumerate(TEXT):
            data = b"" if index < num_sampled else comment(Sampled(0, (ord(letter),)))
            data += b"" if index < num_events else b"data: " + letter.encode() + b"\n\n"
            if self.stops_after == index:
                self.is_stopped = True
            if self.is_stopped:
                return await self._stand_still(receive)
            if self.dies_after == index and self.damages:
                data = b": mmserve !!!!\n\n" + data
            elif self.dies_after == index and self.gives_up:
                await send({"type": "http.response.body", "body": GIVEN_UP, "more_body": False})
                return
            elif self.dies_after == index:
                self.status = 503 if self.then_refuses else 200
                self.numbers = self.numbers if self.becomes is None else self.becomes
                if self.breaks_event:
                    await send({"type": "http.response.body", "body": data[:-1], "more_body": True})
                raise Died
            await send({"type": "http.response.body", "body": data, "more_body": True})
            await asyncio.sleep(0)
        if self.holds:
            await self._stand_still(receive)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n", "more_body": False})


@asynccontextmanager
async def front_of(
    *replicas: ASGIApp, unreachable: int = 0, dying: int = 0, **options: Any
) -> AsyncIterator[tuple[str, Front]]:
    """A front in this event loop; its URL. ``dying``: further replicas that end each connection once they have got a
    request. ``options``: of FrontOptions."""
    async with AsyncExitStack() as stack:
        urls = [f"http://127.0.0.1:{(await stack.enter_async_context(serving(each))).port}" for each in replicas]
        urls += [f"http://127.0.0.1:{number}" for number in range(1, 1 + unreachable)]
        for _ in range(dying):
            server = await stack.enter_async_context(await asyncio.start_server(_take_and_die, "127.0.0.1", 0))
            urls.append(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        front = Front(FrontOptions(KEY, **options))
        front.replicas.set({f"replica{number}": url for number, url in enumerate(urls)})
        async with _listening(front) as url:
            yield url, front


async def _take_and_die(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.close()


@asynccontextmanager
async def _listening(front: Front) -> AsyncIterator[str]:
    listener, started = socket.create_server(("127.0.0.1", 0)), asyncio.Event()
    port = listener.getsockname()[1]
    server = front.server(started.set)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await started.wait()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(timeout_s=60)
        await task
