"""Errors in Anthropic's JSON form. ``mmserve.runtime.errors`` defines the status of each error."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from mmserve.runtime.errors import ContextLengthExceeded, MmserveError, Overloaded, ThreadsUnsupported

_QUEUE_FULL = 529
"""Anthropic's status for a server with too many requests; its 429 says that this client has sent too many."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    _QUEUE_FULL: "overloaded_error",
}


class ErrorDetails(msgspec.Struct):
    """What a client can act upon."""

    error_code: str


class ErrorObject(msgspec.Struct):
    type: str
    message: str
    details: ErrorDetails | UnsetType = UNSET


class ErrorAnswer(msgspec.Struct, tag_field="type", tag="error"):
    error: ErrorObject
    request_id: str | None


def error_status(error: MmserveError) -> int:
    """The HTTP status of the error in this protocol."""
    return _QUEUE_FULL if isinstance(error, Overloaded) else error.status


def error_body(error: MmserveError, request_id: str | None = None) -> bytes:
    """``{"type": "error", "error": {type, message}, "request_id"}`` as JSON."""
    status = error_status(error)
    type_ = _TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    details: ErrorDetails | UnsetType = UNSET
    if isinstance(error, ThreadsUnsupported):
        # SDKs that read this code send the request again without a thread.
        details = ErrorDetails(error.kind)
    return msgspec.json.encode(ErrorAnswer(ErrorObject(type_, _message(error), details), request_id))


def _message(error: MmserveError) -> str:
    """Begins with the field at fault: the protocol has no other place for it."""
    if isinstance(error, ContextLengthExceeded) and error.prompt_tokens is not None:
        # Agents shorten their conversation when they read this sentence.
        return f"prompt is too long: {error.prompt_tokens} tokens > {error.max_prompt_tokens} maximum"
    if error.param is None or error.message.startswith(f"{error.param}:"):
        return error.message
    return f"{error.param}: {error.message}"
