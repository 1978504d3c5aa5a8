"""ASGI middleware around every route: checks Host, Origin, API key and content type, sets the x-request-id and
request-id headers, counts and logs responses.

Plain ASGI rather than Starlette's BaseHTTPMiddleware, which buffers responses and cancels tasks.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mmserve.httpserver.call import new_request_id
from mmserve.httpserver.http.auth import OPEN_PATHS, ApiKeyAuth
from mmserve.httpserver.http.browser_guard import BrowserGuard, require_json
from mmserve.httpserver.http.connections import Counts
from mmserve.messages.relay import SERVER_HEADER
from mmserve.runtime.errors import MmserveError, UnsupportedMediaType

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_LOGGED_PATH_LENGTH = 200

logger = logging.getLogger("mmserve.access")


@dataclass
class _Access:
    """What is counted and logged about one response. ``key``: the name of the request's API key."""

    request_id: str
    started_s: float = field(default_factory=time.monotonic)
    key: str | None = None
    status: int = 0
    nbytes: int = 0


class RequestMiddleware:
    """Wraps an ASGI app, and answers an error that it raises before its response has begun.

    ``response_to`` renders the error of a request, given its scope; None: it is a bug, which uvicorn logs.
    ``takes_method``: whether the app has a route with the scope's path and method. The request's id is in the scope's
    state, as ``request_id``.
    """

    def __init__(
        self,
        app: ASGIApp,
        auth: ApiKeyAuth,
        browser_guard: BrowserGuard,
        metrics: Counts,
        response_to: Callable[[Scope, Exception], Response | None],
        takes_method: Callable[[Scope], bool],
        access_log: bool = False,
    ) -> None:
        self._app = app
        self._auth = auth
        self._browser_guard = browser_guard
        self._metrics = metrics
        self._response_to = response_to
        self._takes_method = takes_method
        self._access_level = logging.INFO if access_log else logging.DEBUG

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = Headers(scope=scope)
        request_id = _request_id(headers.get("x-request-id"))
        scope.setdefault("state", {})["request_id"] = request_id
        access, id_header = _Access(request_id), request_id.encode()

        async def send_response(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"x-request-id", id_header),
                    (b"request-id", id_header),
                    *_to_front(scope),
                ]
                access.status = message["status"]
                self._count(scope, access)
            access.nbytes += len(message.get("body", b""))
            await send(message)

        try:
            access.key = self._check(scope, headers)
            scope["state"]["key"] = access.key or ""
            await self._app(scope, receive, send_response)
        except Exception as error:  # the boundary of a request
            if access.status:
                raise
            response = self._response_to(scope, error)
            await (response or self._internal_error(scope))(scope, receive, send_response)
            if response is None:
                raise
        finally:
            self._log(scope, access)

    def _internal_error(self, scope: Scope) -> Response:
        response = self._response_to(scope, MmserveError("internal error"))
        assert response is not None, "this error is no bug"
        return response

    def _check(self, scope: Scope, headers: Headers) -> str | None:
        """The name of the request's API key. Raises what the checks raise."""
        if not self._auth.required and scope["path"] not in OPEN_PATHS:
            self._browser_guard.check(headers)
        key = self._auth.check(scope["path"], headers)
        try:
            require_json(scope["method"], scope["path"], headers)
        except UnsupportedMediaType:
            # Where nothing reads the body, the app says that there is no such path or method.
            if self._takes_method(scope):
                raise
        return key

    def _count(self, scope: Scope, access: _Access) -> None:
        self._metrics.add("http_requests", 1, _route(scope), str(access.status))
        if access.key is not None:
            self._metrics.add("http_requests_by_key", 1, access.key, str(access.status))

    def _log(self, scope: Scope, access: _Access) -> None:
        """The access log's line, when the response has ended. A status of 0: the client left before there was any."""
        if not logger.isEnabledFor(self._access_level):
            return
        fields = {
            "client": (scope.get("client") or ("",))[0],
            "method": scope["method"],
            "path": scope["path"][:_LOGGED_PATH_LENGTH],
            "status": access.status,
            "bytes": access.nbytes,
            "ms": round(1e3 * (time.monotonic() - access.started_s), 1),
            "x_request_id": access.request_id,
            "key": access.key,
        }
        line = "%(client)s %(method)s %(path)r: %(status)d, %(bytes)d bytes in %(ms)s ms, "
        logger.log(
            self._access_level, line + "x-request-id %(x_request_id)s, key %(key)s", fields, extra={"fields": fields}
        )


def _request_id(client_id: str | None) -> str:
    """The client's id if it is valid in a header, or else a new one. It is only echoed, never used as a key."""
    return client_id if client_id is not None and _REQUEST_ID.fullmatch(client_id) else new_request_id()


def _route(scope: Scope) -> str:
    """The route's pattern. Unknown paths share one label, so that they create no new series in the metrics."""
    return cast(str, getattr(scope.get("route"), "path", "other"))


def _to_front(scope: Scope) -> list[tuple[bytes, bytes]]:
    """What this server tells a front beside an answer, if it is for one."""
    server: bytes | None = scope["state"].get("server")
    return [(SERVER_HEADER.encode(), server)] if server is not None else []
