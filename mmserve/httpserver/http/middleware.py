"""Around every request, whatever its route: the API key, the request id header, the count of answers.

Plain ASGI: nothing is buffered and nothing is cancelled here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import cast

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mmserve.httpserver.call import new_request_id
from mmserve.httpserver.http.auth import ApiKeyAuth
from mmserve.metrics.client import MetricsClient
from mmserve.runtime.errors import MmserveError

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class RequestMiddleware:
    """Wraps an ASGI app. ``render`` makes a response of an error."""

    def __init__(
        self,
        app: ASGIApp,
        auth: ApiKeyAuth,
        metrics: MetricsClient,
        render: Callable[[MmserveError], Response],
    ) -> None:
        self._app = app
        self._auth = auth
        self._metrics = metrics
        self._render = render

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        request_id = _request_id(headers.get("x-request-id"))

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
                self._metrics.add("http_requests", 1, _route(scope), str(message["status"]))
            await send(message)

        try:
            self._auth.check(scope["path"], headers)
        except MmserveError as error:
            return await self._render(error)(scope, receive, answer)
        await self._app(scope, receive, answer)


def _request_id(given: str | None) -> str:
    """The client's own id when it can stand in a header; only ever echoed, never used as a key."""
    return given if given is not None and _REQUEST_ID.fullmatch(given) else new_request_id()


def _route(scope: Scope) -> str:
    """The route's pattern, so that paths which do not exist make no new series."""
    return cast(str, getattr(scope.get("route"), "path", "other"))
