"""The ASGI app of a front: reads a request, names what it needs, forwards it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mmserve.cluster.front.attempts import Attempts
from mmserve.cluster.front.request.forwarded import ForwardedRequest, Kept
from mmserve.cluster.front.request.headers import forwarded_headers, key_of
from mmserve.cluster.front.request.wants import Namer
from mmserve.cluster.scale.policy import Want
from mmserve.httpserver.api.anthropic import errors as anthropic
from mmserve.httpserver.api.errors import response_to
from mmserve.httpserver.api.openai import errors as openai
from mmserve.httpserver.api.openai.responses.events.numbering import numbered
from mmserve.httpserver.api.openai.responses.events.writer import error_event
from mmserve.httpserver.api.response import SSE_DONE, sse_event
from mmserve.httpserver.http.auth import ApiKeyAuth
from mmserve.httpserver.http.body import read_body
from mmserve.httpserver.http.browser_guard import BrowserGuard, with_cors
from mmserve.httpserver.http.disconnect import WhileConnected
from mmserve.httpserver.http.middleware import RequestMiddleware
from mmserve.runtime.byte_budget import ByteBudget
from mmserve.runtime.errors import MmserveError, Unavailable

_GENERATING = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/embeddings"})
_RESPONSES, _MESSAGES = "/v1/responses", "/v1/messages"
_ONLY_ASKING = frozenset(
    {
        "/v1/chat/completions/render",
        "/v1/completions/render",
        "/v1/messages/count_tokens",
        "/v1/responses/compact",
        "/v1/responses/input_tokens",
        "/tokenize",
        "/detokenize",
    }
)
"""Answered from the body, and nothing is kept: any replica may be asked, also twice."""
_NAMED = _GENERATING | {_RESPONSES}
_STORED = ("/v1/responses", "/v1/files", "/v1/batches")
"""A replica that does not know what such a request names is not the last to be asked."""
_FULL_RETRY_AFTER_S = 1.0


def make_app(
    attempts: Attempts,
    namer: Namer,
    *,
    max_body_nbytes: int,
    bodies: ByteBudget,
    host: str,
    allowed_hosts: Sequence[str],
    allowed_origins: Sequence[str],
) -> ASGIApp:
    """``bodies``: memory for the bodies of all requests under way; each is kept until its answer has ended."""
    front = _Front(attempts, namer, max_body_nbytes, bodies)
    guard = BrowserGuard(host, allowed_hosts, allowed_origins)
    guarded = RequestMiddleware(front, ApiKeyAuth(()), guard, attempts.metrics, response_to, lambda scope: False)
    return with_cors(guarded, allowed_origins) if allowed_origins else guarded


class _Front:
    def __init__(self, attempts: Attempts, namer: Namer, max_body_nbytes: int, bodies: ByteBudget) -> None:
        self._attempts = attempts
        self._namer = namer
        self._max_body_nbytes = max_body_nbytes
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        if path == "/live" and method == "GET":
            return await Response("alive")(scope, receive, send)
        if path == "/metrics" and method == "GET":
            return await Response(self._attempts.metrics.page(), media_type="text/plain")(scope, receive, send)
        request = Request(scope, receive)
        nbytes = self._declared(request)
        if not self._bodies.fits(nbytes):
            raise Unavailable("the bodies of requests take all memory for them", retry_after_s=_FULL_RETRY_AFTER_S)
        with Kept(self._bodies) as kept:
            kept.grow_to(nbytes)
            body = await read_body(request, self._max_body_nbytes)
            tenant = key_of(scope["headers"]) if self._attempts.caches_by_key else b""
            want = await self._namer.want(body, tenant) if method == "POST" and path in _NAMED else Want()
            generates = method == "POST" and path in (_GENERATING if want.in_background else _NAMED)
            forwarded = ForwardedRequest(
                method,
                scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b""),
                forwarded_headers(scope["headers"], {b"x-request-id": scope["state"]["request_id"].encode()}),
                memoryview(body),
                want,
                generates,
                partial(_event, path),
                kept,
                repeats=generates or (method == "POST" and path in _ONLY_ASKING),
                names_stored=path.startswith(_STORED),
            )
            kept.grow_to(len(body))
            async with WhileConnected(scope):
                await self._attempts.answer(forwarded, send)

    def _declared(self, request: Request) -> int:
        declared = request.headers.get("content-length", "")
        if "transfer-encoding" in request.headers:
            return self._max_body_nbytes
        return min(int(declared), self._max_body_nbytes) if declared.isdecimal() else 0


def _event(path: str, error: MmserveError, num_events: int) -> bytes:
    if path == _MESSAGES:
        return b"event: error\ndata: " + anthropic.error_body(error) + b"\n\n"
    if path == _RESPONSES:
        return numbered(error_event(msgspec.structs.asdict(openai.error_object(error))), num_events) + SSE_DONE
    return sse_event(openai.error_body(error)) + SSE_DONE
