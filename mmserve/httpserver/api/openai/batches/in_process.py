"""A request of this process to itself: an endpoint's whole answer, without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from mmserve.httpserver.api.errors import response_to
from mmserve.httpserver.call import new_request_id
from mmserve.httpserver.http.disconnect import DISCONNECT, LOST
from mmserve.runtime.patience import Reply

Endpoint = Callable[[Request], Awaitable[Response]]
IN_BACKGROUND = "mmserve.background"
"""A key of a request's state: its priority is below that of every client who waits."""


async def ask(path: str, endpoint: Endpoint, body: bytes, owner: str) -> tuple[Reply, float]:
    """The reply, and the seconds after which it says that another try may succeed, or 0. ``owner``: whose key it is."""
    request_id = new_request_id()
    sent = _Sent()
    scope: dict[str, Any] = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "state": {"key": owner, "request_id": request_id, IN_BACKGROUND: True},
        "extensions": {
            DISCONNECT: {"watch": _never_disconnected},
            LOST: {"add": lambda on_lost: None, "discard": lambda on_lost: None},
        },
    }
    waiting = [body]

    async def receive() -> Message:
        if not waiting:  # the client never leaves
            await asyncio.get_running_loop().create_future()
        return {"type": "http.request", "body": waiting.pop(), "more_body": False}

    try:
        response = await endpoint(Request(scope, receive))
        await response(scope, receive, sent)
    except Exception as error:  # the boundary of a request
        failure = response_to(scope, error)
        if failure is None:
            raise
        await failure(scope, receive, sent)
    return Reply(sent.status, b"".join(sent.parts), request_id), sent.retry_after_s


@contextmanager
def _never_disconnected(on_disconnect: Callable[[], None]) -> Iterator[None]:
    yield


class _Sent:
    """Collects what a response sends."""

    def __init__(self) -> None:
        self.status = 0
        self.retry_after_s = 0.0
        self.parts: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = dict(message.get("headers", ()))
            self.retry_after_s = float(headers.get(b"retry-after", b"0"))
        else:
            self.parts.append(bytes(message.get("body", b"")))
