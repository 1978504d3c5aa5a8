"""Responses that read from a request's task: JSON or server-sent events, ended when the client disconnects."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mmserve.httpserver.http.disconnect import WhileConnected
from mmserve.httpserver.request.task import RequestTask
from mmserve.messages.relay import GIVEN_UP, comment
from mmserve.runtime.errors import Unavailable

SendAnswer = Callable[[RequestTask, Send], Awaitable[None]]
"""Sends a task's whole response in one protocol's form. If it raises MmserveError before it has sent anything, the
client gets an error response."""
PART_NBYTES = 64 * 1024
"""Of a whole answer. An unread answer waits here, where it is counted, except for a part or two in its connection."""
SSE_DONE = b"data: [DONE]\n\n"
_SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class TaskResponse(Response):
    """Sends the answer of ``task`` by ``send_answer``; aborts the task if the client disconnects before the end.

    Starlette's StreamingResponse cancels its scope repeatedly on a disconnect, which would interrupt the task's
    cleanup. Here a disconnect is handled once, with and without streaming.
    """

    def __init__(self, task: RequestTask, send_answer: SendAnswer) -> None:
        super().__init__()
        self._task = task
        self._send_answer = send_answer

    def __del__(self) -> None:
        """A response may be dropped without being called."""
        self._task.abort()
        self._task.response_ended()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with WhileConnected(scope, self._task.abort):
                await self._send_answer(self._task, send)
        finally:
            self._task.abort()
            self._task.response_ended()


async def send_json(send: Send, body: bytes) -> None:
    """Send a JSON response with status 200, in parts: each waits until the client has read most of those before it."""
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    last = max(0, len(body) - 1) // PART_NBYTES
    for part in range(last + 1):
        data = body[part * PART_NBYTES : (part + 1) * PART_NBYTES]
        await send({"type": "http.response.body", "body": data, "more_body": part < last})


def sse_event(payload: bytes) -> bytes:
    """One server-sent event; ``payload`` is JSON and therefore has no newline."""
    return b"data: " + payload + b"\n\n"


_PING, _END = b"event: ping\n", b"\n\n"


async def send_events(send: Send, events: AsyncGenerator[bytes, None], task: RequestTask | None = None) -> None:
    """Send server-sent events as they are made.

    The status line is sent with the first event, so that an error before it can still set the status. ``task``: that
    makes the events, if each is made of its tokens alone. A front that relays it is told the tokens, and does not get
    events that it has from another server.
    """
    if task is not None and task.call.relayed is not None:
        events = _relayed(events, task, task.call.relayed.relay.num_events)
    started = False
    async with aclosing(events):
        async for data in events:
            if not started:
                await send({"type": "http.response.start", "status": 200, "headers": _SSE_HEADERS})
                started = True
            await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _relayed(
    events: AsyncGenerator[bytes, None], task: RequestTask, num_events: int
) -> AsyncGenerator[bytes, None]:
    """``events`` without the first ``num_events``, each after comments with the tokens that it is made of. The last
    events may come in parts, whose borders may be anywhere."""
    last = b""
    async with aclosing(events):
        async for data in events:
            if isinstance(task.deltas.failure, Unavailable):
                yield GIVEN_UP
                return
            comments = b"".join(map(comment, task.deltas.take_sampled()))
            if num_events and not data.startswith(_PING):
                num_events -= (last + data).endswith(_END)
                last, data = data[-1:], b""
            if comments or data:
                yield comments + data
    yield b""  # the status is sent even if nothing is left to send
