"""Sends the events of a stored response again, and follows one that is still made, at whatever worker.

The events are made from the record a second time, so that all who read them see the same ones with the same numbers.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mmserve.httpserver.api.openai.errors import error_object
from mmserve.httpserver.api.openai.responses.events.fold import Fold, lost, read_line, without_output
from mmserve.httpserver.api.openai.responses.events.numbering import Numbering, parts_of
from mmserve.httpserver.api.openai.responses.events.objects import ResponseObject
from mmserve.httpserver.api.openai.responses.events.writer import Event
from mmserve.httpserver.api.response import SSE_DONE, send_events
from mmserve.httpserver.http.disconnect import WhileConnected
from mmserve.httpserver.limits.reservations import Reservation
from mmserve.httpserver.response_store.run_table import Page
from mmserve.httpserver.response_store.store import ResponseStore
from mmserve.runtime.errors import MmserveError, ResponseNotFound, quoted

_KEPT_COPIES = 4
"""Of a record's text: its lines, the texts in them, and the events that have all of them."""
_COMMENT = b":\n\n"
"""Sent first: a client that has all events so far would else wait for the status until there is another one."""
_LINES_AT_ONCE = 16
"""A long record is rendered in parts, so that other requests are not held up."""


def seen(num_lines: int) -> int:
    """What there is of a response in progress with so many lines, as BackgroundRuns counts it; 0: it is queued."""
    return 1 + num_lines


class Follower:
    """Reads one response for one client. ``memory``: for what it keeps; released with ``release``.

    ``after``: number of the last event that the client has.
    """

    def __init__(self, responses: ResponseStore, owner: str, id: str, memory: Reservation, after: int = -1) -> None:
        self._responses = responses
        self._owner = owner
        self._id = id
        self._memory = memory
        self._numbered = Numbering(after)
        self._num_lines = 0
        self._read_nbytes = 0

    async def sent_events(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events to the end of the response. Raises MmserveError only before the first."""
        started = False
        try:
            async with aclosing(self._events()) as events:
                async for event in events:
                    if not started:
                        yield _COMMENT
                    started = True
                    for part in parts_of(self._numbered.sse(event)):
                        yield part
        except MmserveError as error:
            if not started:
                raise
            fields = msgspec.structs.asdict(error_object(error))
            flat = {name: fields[name] for name in ("code", "message", "param")}
            yield self._numbered.sse(Event("error", flat | {"error": fields}))
        yield SSE_DONE

    def release(self) -> None:
        self._memory.release()

    async def _events(self) -> AsyncGenerator[Event, None]:
        page = await self._page()
        response = msgspec.json.decode(page.body, type=ResponseObject)
        fold, is_queued = Fold(without_output(response)), response.background
        for event in fold.begin():
            yield event
        with self._responses.runs.following():
            while True:
                if is_queued and page.status != "queued":
                    is_queued = False
                    for event in fold.start():
                        yield event
                async for event in self._added(fold, page):
                    yield event
                if not page.more:
                    if not page.runner:
                        break
                    num_seen = 0 if is_queued else seen(self._num_lines)
                    await self._responses.runs.changed(self._id, page.runner, num_seen)
                page = await self._page()
        for event in fold.again(msgspec.json.decode(page.body, type=ResponseObject)):
            yield event

    async def _added(self, fold: Fold, page: Page) -> AsyncGenerator[Event, None]:
        for line in page.lines:
            for event in fold.add(*read_line(line)):
                yield event
            self._num_lines += 1
            if self._num_lines % _LINES_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _page(self) -> Page:
        page = await self._responses.page(self._owner, self._id, self._num_lines, lost)
        if page is None:
            raise ResponseNotFound(f"no response {quoted(self._id)} is stored", param="response_id")
        self._read_nbytes += len(page.body) + sum(map(len, page.lines))
        self._memory.resize(_KEPT_COPIES * self._read_nbytes)
        return page


class FollowedEvents(Response):
    """Sends what a follower reads, until the client disconnects. ``release``: called at the end, besides its own."""

    def __init__(self, follower: Follower, release: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._follower = follower
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with WhileConnected(scope):
                await send_events(send, self._follower.sent_events())
        finally:
            self._follower.release()
            self._release()
