"""Errors in the form of the client's protocol, which the path of the request tells."""

from __future__ import annotations

from starlette.responses import Response

from mmserve.httpserver.api.openai import errors as openai
from mmserve.runtime.errors import MmserveError
from mmserve.runtime.retry_after import header_seconds


def error_response(path: str, error: MmserveError) -> Response:
    """A response with the error's status, body and Retry-After. ``path``: of the request's URL."""
    response = Response(openai.error_body(error), error.status, media_type="application/json")
    if error.retry_after_s is not None:
        response.headers["retry-after"] = str(header_seconds(error.retry_after_s))
    if error.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response
