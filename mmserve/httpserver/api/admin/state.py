"""``/admin/state``: what the server does now and has done in the last hour, once or every second.

The metrics server makes it, so all HTTP workers show the same. Nothing is asked of it while nobody looks.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec
from fastapi import APIRouter
from msgspec import UNSET, Meta
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mmserve.httpserver.api.admin.metrics_server import read_metrics_page
from mmserve.httpserver.api.openapi import answers, query
from mmserve.httpserver.api.response import send_events, sse_event
from mmserve.httpserver.context import WorkerContext
from mmserve.httpserver.http.disconnect import WhileConnected
from mmserve.messages.server_state import ServerState
from mmserve.runtime.errors import InvalidRequest, MmserveError, Unavailable, quoted

_INTERVAL_S = 1.0
_STREAM_S = 60.0
"""A stream ends after this time, so that it does not hold up a worker that is to be replaced."""
_MAX_STREAMS = 8
_NOTHING_NEW = b":\n\n"
_QUERY = query(after=Annotated[float, Meta(ge=0)])


class AllocSwitch(msgspec.Struct, frozen=True):
    """Whether there are two paths of allocation, and the share of requests that use v2. ``POST /admin/alloc`` changes
    it."""

    has_v2: bool
    concurrent_alloc_fraction: float


class AdminState(ServerState, kw_only=True):
    """The answer."""

    model: str
    version: str
    alloc: AllocSwitch


def state_routes(context: WorkerContext) -> APIRouter:
    """``GET /admin/state`` and ``GET /admin/state/events``. ``after``: of the history, only what ended after this."""
    router = APIRouter(tags=["admin"])
    places = _Places(_MAX_STREAMS)
    described = answers(AdminState)

    @router.get("/admin/state", response_class=Response, responses=described, openapi_extra=_QUERY)
    async def state(request: Request) -> Response:
        found = await _read(context, _after(request))
        return Response(msgspec.json.encode(found), media_type="application/json")

    @router.get("/admin/state/events", response_class=Response, responses=_as_stream(described), openapi_extra=_QUERY)
    async def events(request: Request) -> Response:
        """Server-sent events, one a second: states whose history has only what is new. Ends after a minute."""
        return _StateEvents(context, _after(request), places)

    return router


class _Places:
    """Streams of this worker."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._limit = limit

    @contextmanager
    def one(self) -> Iterator[None]:
        """Raises Unavailable if all are taken."""
        if not self._free:
            raise Unavailable(f"{self._limit} clients read this worker's state already", retry_after_s=_STREAM_S)
        self._free -= 1
        try:
            yield
        finally:
            self._free += 1


class _StateEvents(Response):
    """Sends states until the client disconnects, the worker is to end, or it has taken _STREAM_S."""

    def __init__(self, context: WorkerContext, after_s: float, places: _Places) -> None:
        super().__init__()
        self._context = context
        self._after_s = after_s
        self._places = places

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._places.one():
            async with WhileConnected(scope):
                await send_events(send, self._events())

    async def _events(self) -> AsyncGenerator[bytes, None]:
        """Raises Unavailable only before the first."""
        after_s, end_s = self._after_s, time.monotonic() + _STREAM_S
        state = await _read(self._context, after_s)
        arena = state.arena
        yield sse_event(msgspec.json.encode(state))
        while time.monotonic() < end_s and self._context.admission.phase_name != "draining":
            after_s = state.history[-1].time_s if state.history else after_s
            await asyncio.sleep(_INTERVAL_S)
            try:
                state = await _read(self._context, after_s)
            except MmserveError:  # the metrics server is being restarted
                yield _NOTHING_NEW
                continue
            is_same, arena = state.arena == arena, state.arena
            yield sse_event(msgspec.json.encode(msgspec.structs.replace(state, arena=UNSET) if is_same else state))


async def _read(context: WorkerContext, after_s: float) -> AdminState:
    page = await read_metrics_page(context.endpoints.metrics_http, f"/state/after/{after_s}")
    try:
        state = msgspec.json.decode(page.body, type=ServerState)
    except msgspec.DecodeError as error:
        raise Unavailable("the metrics server cannot tell the state now", retry_after_s=1.0) from error
    config = context.deployment.config
    return AdminState(
        **msgspec.structs.asdict(state),
        model=context.model.name,
        version=context.deployment.version,
        alloc=AllocSwitch(config.enable_concurrent_alloc, context.alloc_paths.split.fraction),
    )


def _after(request: Request) -> float:
    """The query ``after``. Raises InvalidRequest."""
    for name in request.query_params:
        if name != "after":
            raise InvalidRequest(f"no parameter {quoted(name)} is known here", param=name)
    given = request.query_params.get("after", "0")
    try:
        after_s = float(given)
    except ValueError:
        after_s = math.nan
    if not 0 <= after_s < math.inf:
        raise InvalidRequest("after must be a time in seconds since 1970", param="after")
    return after_s


def _as_stream(described: dict[int | str, dict[str, object]]) -> dict[int | str, dict[str, object]]:
    """The same answers, each in an event."""
    schema = {"type": "string", "description": "Server-sent events: the data of each is a state."}
    return {**described, 200: {"description": "Events", "content": {"text/event-stream": {"schema": schema}}}}
