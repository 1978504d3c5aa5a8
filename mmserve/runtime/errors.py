"""Errors that reach a user, each with an HTTP status and a machine-readable kind.

The HTTP server renders them in the format of the client's protocol.
"""

from __future__ import annotations

MAX_MESSAGE_CHARS = 1000
MAX_QUOTED_CHARS = 60


def quoted(text: object) -> str:
    """``text`` as it may stand in an error message: its representation, cut to MAX_QUOTED_CHARS.

    For everything that a client wrote, so that an error does not repeat megabytes of a request.
    """
    return shortened(repr(shortened(text) if isinstance(text, str) else text), MAX_QUOTED_CHARS + len("''"))


def shortened(text: str, limit: int = MAX_QUOTED_CHARS) -> str:
    """``text`` cut to ``limit`` characters, the last of which are then an ellipsis."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


class MmserveError(Exception):
    """An error whose message may be shown to a client, cut to MAX_MESSAGE_CHARS.

    ``param`` names the request field at fault, ``retry_after_s`` becomes a Retry-After header.
    """

    status = 500
    kind = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        message = shortened(message, MAX_MESSAGE_CHARS)
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class InvalidRequest(MmserveError):
    """The request is wrong; a retry cannot succeed."""

    status = 400
    kind = "invalid_request_error"


class ContextLengthExceeded(InvalidRequest):
    """The prompt, or prompt and requested output, are longer than the context.

    ``prompt_tokens``: length of the prompt, or a lower bound of it, if it alone is longer than ``max_prompt_tokens``.
    """

    kind = "context_length_exceeded"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        prompt_tokens: int | None = None,
        max_prompt_tokens: int | None = None,
    ) -> None:
        super().__init__(message, param=param)
        self.prompt_tokens = prompt_tokens
        self.max_prompt_tokens = max_prompt_tokens


class NoTokenAllowed(InvalidRequest):
    """The request's parameters ban every token that could come next."""

    kind = "no_token_allowed"


class MediaError(InvalidRequest):
    """An image cannot be fetched, read, decoded or used."""

    kind = "invalid_media"


class ThreadsUnsupported(InvalidRequest):
    """The client asks the server to keep its conversation; it may send the whole conversation instead."""

    kind = "thread_unsupported_request"


class MediaNotStored(InvalidRequest):
    """The request names an image by a uuid that stands for no stored image, or not any more."""

    kind = "media_not_stored"


class TooSlow(MmserveError):
    """The body of the request did not arrive in time."""

    status = 408
    kind = "request_timeout"


class DeadlineExceeded(MmserveError):
    """The request was not answered within the time that it, or the server, allows."""

    status = 504
    kind = "deadline_exceeded"


class Unauthorized(MmserveError):
    """The API key is missing or wrong."""

    status = 401
    kind = "invalid_api_key"


class Forbidden(MmserveError):
    """The key does not open this path, or a web page of another site sent the request."""

    status = 403
    kind = "forbidden"


class UnsupportedMediaType(MmserveError):
    """The body is not said to be JSON."""

    status = 415
    kind = "unsupported_media_type"


class NotFound(MmserveError):
    """The route or model does not exist."""

    status = 404
    kind = "not_found"


class ModelNotFound(NotFound):
    """The request names a model that is not served."""

    kind = "model_not_found"


class ResponseNotFound(NotFound):
    """The response is not stored, or not by this client."""

    kind = "response_not_found"


class ItemNotFound(NotFound):
    """The item that an input refers to is not stored, or not by this client."""

    kind = "item_not_found"


class PreviousResponseNotFound(NotFound):
    """The response that a request continues is not stored, or not by this client."""

    kind = "previous_response_not_found"


class TooLarge(MmserveError):
    """A body, an image or a request exceeds a configured limit."""

    status = 413
    kind = "request_too_large"


class Misdirected(MmserveError):
    """Another server can answer the request, this one cannot."""

    status = 421
    kind = "misdirected_request"


class Overloaded(MmserveError):
    """The queue is full; the client may retry after ``retry_after_s``."""

    status = 429
    kind = "overloaded"


class Unavailable(MmserveError):
    """The server is loading, draining or restarting, or resources did not become free in time."""

    status = 503
    kind = "unavailable"


class Shortage(Unavailable):
    """The machine, or a process of the server, has run out of something. Trying again at once does not help."""


class GrammarError(MmserveError):
    """The engine could not follow the grammar that the answer must fit."""

    kind = "grammar_error"


class StartupError(Exception):
    """The server cannot start. The message is one line that says what the user can do."""
