"""Errors in OpenAI's JSON form. ``mmserve.runtime.errors`` defines the status of each error."""

from __future__ import annotations

import msgspec

from mmserve.runtime.errors import MmserveError

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


class ErrorObject(msgspec.Struct):
    """``param``: the field at fault."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct):
    error: ErrorObject


def error_body(error: MmserveError) -> bytes:
    """``{"error": {message, type, param, code}}`` as JSON."""
    return msgspec.json.encode(ErrorAnswer(error_object(error)))


def error_object(error: MmserveError) -> ErrorObject:
    server_side = "server_error" if error.status >= 500 else "invalid_request_error"
    type_ = _TYPES.get(error.status, server_side)
    code = error.kind if error.kind != type_ else None
    return ErrorObject(error.message, type_, error.param, code)
