"""Errors in the form of the client's protocol, which the path of the request tells, or a header of Anthropic's SDKs."""

from __future__ import annotations

import logging

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Scope

from mmserve.httpserver.api.anthropic import errors as anthropic
from mmserve.httpserver.api.openai import errors as openai
from mmserve.runtime.errors import MmserveError
from mmserve.runtime.retry_after import header_seconds
from mmserve.runtime.shortage import shortage_of

logger = logging.getLogger(__name__)


def response_to(scope: Scope, error: Exception) -> Response | None:
    """The response to any error of a request before its answer; None for a bug."""
    match error:
        case MmserveError():
            return error_response(scope, error)
        case ClientDisconnect():
            return Response(status_code=499)  # only counted in the metrics: the client is gone
        case OSError() | MemoryError() if (short := shortage_of(error)) is not None:
            # The machine has run out of something before the request's task was started.
            logger.warning("a request failed: %s", short.message)
            return error_response(scope, short)
    return None


def error_response(scope: Scope, error: MmserveError) -> Response:
    """A response with the error's status, body and Retry-After. ``scope``: of the request."""
    status = error.status
    if _is_anthropic(scope):
        status = anthropic.error_status(error)
        body = anthropic.error_body(error, scope["state"]["request_id"])
    else:
        body = openai.error_body(error)
    response = Response(body, status, media_type="application/json")
    if error.retry_after_s is not None:
        response.headers["retry-after"] = str(header_seconds(error.retry_after_s))
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


def _is_anthropic(scope: Scope) -> bool:
    path = scope["path"]
    return path == "/v1/messages" or path.startswith("/v1/messages/") or "anthropic-version" in Headers(scope=scope)
