"""Errors in OpenAI's JSON form. ``mmserve.runtime.errors`` defines the status of each error."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from mmserve.runtime.errors import MmserveError
from mmserve.runtime.retry_after import header_seconds

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def error_body(error: MmserveError) -> bytes:
    """``{"error": {message, type, param, code}}`` as JSON."""
    server_side = "server_error" if error.status >= 500 else "invalid_request_error"
    type_ = _TYPES.get(error.status, server_side)
    code = error.kind if error.kind != type_ else None
    return msgspec.json.encode({"error": {"message": error.message, "type": type_, "param": error.param, "code": code}})


def error_response(error: MmserveError) -> Response:
    """A response with the error's status, body and Retry-After."""
    response = Response(error_body(error), error.status, media_type="application/json")
    if error.retry_after_s is not None:
        response.headers["retry-after"] = str(header_seconds(error.retry_after_s))
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response
