"""ASGI middleware around every route: checks the API key, sets the x-request-id header, counts responses.

Plain ASGI rather than Starlette's BaseHTTPMiddleware, which buffers responses and cancels tasks.
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
    """Wraps an ASGI app. ``error_response`` renders an error as a response."""

    def __init__(
        self,
        app: ASGIApp,
        auth: ApiKeyAuth,
        metrics: MetricsClient,
        error_response: Callable[[MmserveError], Response],
    ) -> None:
        self._app = app
        self._auth = auth
        self._metrics = metrics
        self._error_response = error_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        request_id = _request_id(headers.get("x-request-id"))

        async def send_response(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["x-request-id"] = request_id
                self._metrics.add("http_requests", 1, _route(scope), str(message["status"]))
            await send(message)

        try:
            self._auth.check(scope["path"], headers)
        except MmserveError as error:
            return await self._error_response(error)(scope, receive, send_response)
        await self._app(scope, receive, send_response)


def _request_id(client_id: str | None) -> str:
    """The client's id if it is valid in a header, or else a new one. It is only echoed, never used as a key."""
    return client_id if client_id is not None and _REQUEST_ID.fullmatch(client_id) else new_request_id()


def _route(scope: Scope) -> str:
    """The route's pattern. Unknown paths share one label, so that they create no new series in the metrics."""
    return cast(str, getattr(scope.get("route"), "path", "other"))
