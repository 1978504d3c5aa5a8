"""Typed errors that reach a user, each with its HTTP status and machine-readable kind.

Knows no protocol: httpserver renders an error in the client's own shape.
"""

from __future__ import annotations


class MmserveError(Exception):
    """An error whose message may be shown to a client.

    ``param`` names the request field at fault, ``retry_after_s`` becomes a Retry-After header.
    """

    status = 500
    kind = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class InvalidRequest(MmserveError):
    """The request itself is wrong; sending it again cannot help."""

    status = 400
    kind = "invalid_request_error"


class ContextLengthExceeded(InvalidRequest):
    """Prompt (plus requested output) longer than the context."""

    kind = "context_length_exceeded"


class MediaError(InvalidRequest):
    """An image that cannot be fetched, read, decoded or used."""

    kind = "invalid_media"


class TooSlow(MmserveError):
    """The request's body did not arrive in time."""

    status = 408
    kind = "request_timeout"


class Unauthorized(MmserveError):
    """No API key, or a wrong one."""

    status = 401
    kind = "invalid_api_key"


class NotFound(MmserveError):
    """No such route or model."""

    status = 404
    kind = "not_found"


class ModelNotFound(NotFound):
    """The request names a model that is not served here."""

    kind = "model_not_found"


class TooLarge(MmserveError):
    """A body, an image or a request that could never fit the configured limits."""

    status = 413
    kind = "request_too_large"


class Overloaded(MmserveError):
    """The queue is full; try again after ``retry_after_s``."""

    status = 429
    kind = "overloaded"


class Unavailable(MmserveError):
    """Loading, draining, restarting, or resources did not become free in time."""

    status = 503
    kind = "unavailable"


class StartupError(Exception):
    """The server cannot start. The message is one line that says what to do instead."""


ERROR_KINDS: dict[str, type[MmserveError]] = {
    cls.kind: cls
    for cls in (
        MmserveError,
        InvalidRequest,
        ContextLengthExceeded,
        MediaError,
        TooSlow,
        Unauthorized,
        NotFound,
        ModelNotFound,
        TooLarge,
        Overloaded,
        Unavailable,
    )
}
"""``kind`` -> class: an error that crossed a process boundary as (kind, message) is raised again from here."""
