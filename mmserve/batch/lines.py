"""Lines of batch files: a request with its name, a response with the same name. Pure."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
"""What a line may ask for."""
MAX_ID_CHARS = 512


class LineError(Exception):
    """A line that cannot be sent. ``code`` and ``param`` are those of OpenAI's batch errors."""

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param


@dataclass(frozen=True)
class BatchLine:
    """``number``: from 1. ``body``: JSON, as it stands in the file."""

    number: int
    custom_id: str
    url: str
    body: bytes


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    custom_id: Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARS)]
    method: str
    url: str
    body: Raw


class _Kind(msgspec.Struct, frozen=True):
    stream: bool | None = None
    background: bool | None = None


class _Response(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: Raw


class _Error(msgspec.Struct, frozen=True, omit_defaults=True):
    code: str
    message: str
    param: str | None = None
    line: int | None = None


class _OutputLine(msgspec.Struct, frozen=True):
    id: str
    custom_id: str | None
    response: _Response | None
    error: _Error | None


class _Done(msgspec.Struct, frozen=True):
    custom_id: str | None
    error: _Error | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class _Answer(msgspec.Struct, frozen=True):
    usage: _Usage | None = None


class _AnsweredResponse(msgspec.Struct, frozen=True):
    body: _Answer


class _Answered(msgspec.Struct, frozen=True):
    response: _AnsweredResponse | None


_LINE = msgspec.json.Decoder(_Line)
_KIND = msgspec.json.Decoder(_Kind)
_DONE = msgspec.json.Decoder(_Done)
_ANSWER = msgspec.json.Decoder(_Answer)
_ANSWERED = msgspec.json.Decoder(_Answered)


def parse_line(number: int, text: bytes) -> BatchLine:
    """Raises LineError, which names the field."""
    try:
        line = _LINE.decode(text)
    except msgspec.ValidationError as error:
        raise LineError("invalid_request", str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LineError("invalid_json_line", f"this line is no JSON: {error}") from None
    if line.method != "POST":
        raise LineError("invalid_method", "method must be POST", "method")
    if line.url not in ENDPOINTS:
        raise LineError("invalid_url", f"url must be one of {', '.join(ENDPOINTS)}", "url")
    try:
        kind = _KIND.decode(line.body)
    except msgspec.DecodeError:
        kind = _Kind()  # the endpoint says what is wrong with it
    for name in ("stream", "background"):
        if getattr(kind, name):
            raise LineError("invalid_request", f"{name} does not go with a batch", f"body.{name}")
    return BatchLine(number, line.custom_id, line.url, bytes(line.body))


def response_line(line: BatchLine, status: int, request_id: str, content: bytes) -> bytes:
    """A line of an output file, or of an error file if the status is not 200."""
    response = _Response(status, request_id, Raw(_json(content)))
    return _encoded(_OutputLine(_new_id(), line.custom_id, response, None))


def error_line(custom_id: str | None, error: LineError, number: int | None = None) -> bytes:
    """A line of an error file, of a request without a response. ``number``: of a line without a usable id."""
    found = _Error(error.code, error.message, error.param, number)
    return _encoded(_OutputLine(_new_id(), custom_id, None, found))


def done_by(text: bytes) -> str | int | None:
    """Whose result a line of an output or error file is: a custom_id, or the number of a line without a usable one.
    None if it is no such line."""
    try:
        done = _DONE.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if done.error is not None and done.error.line is not None:
        return done.error.line
    return done.custom_id


def tokens_of(content: bytes) -> tuple[int, int]:
    """Tokens of prompt and answer that a response counts; 0 where it has none."""
    try:
        return _tokens(_ANSWER.decode(content))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0, 0


def tokens_of_line(text: bytes) -> tuple[int, int]:
    """Those of a line of an output file."""
    try:
        response = _ANSWERED.decode(text).response
    except (msgspec.DecodeError, UnicodeDecodeError):
        return 0, 0
    return (0, 0) if response is None else _tokens(response.body)


def _tokens(answer: _Answer) -> tuple[int, int]:
    usage = answer.usage or _Usage()
    return usage.prompt_tokens or usage.input_tokens, usage.completion_tokens or usage.output_tokens


def _json(content: bytes) -> bytes:
    """The content in one line; as a JSON text if it is no JSON, as the page of a proxy."""
    if b"\n" not in content:
        try:
            msgspec.json.decode(content, type=Raw)
            return content
        except (msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.encode(content.decode(errors="replace"))
    try:
        return msgspec.json.encode(msgspec.json.decode(content))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.encode(content.decode(errors="replace"))


def _encoded(line: Any) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _new_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"
