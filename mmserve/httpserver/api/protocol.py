"""What a protocol is to this server: how a body becomes a GenerateCall, and who sends the answer.

A protocol has no other part in a request: admission, budgets, leases, deadlines and metrics are the same for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from starlette.responses import Response

from mmserve.httpserver.api.json_limits import QUICK_NBYTES, check_values, max_json_nbytes, too_much_text
from mmserve.httpserver.api.response import SendAnswer
from mmserve.httpserver.call import GenerateCall
from mmserve.httpserver.media.split_media import SplitUrl, TooMuchText, UrlsLeft, put_back, split_media
from mmserve.httpserver.request.resources import RequestResources
from mmserve.httpserver.request.task import RequestTask
from mmserve.httpserver.response_store.store import ResponseStore
from mmserve.httpserver.served_model import ServedModel
from mmserve.runtime.errors import MmserveError


@dataclass(frozen=True)
class ParsedRequest:
    """``send_answer`` knows what the answer repeats of the request; ``call.echo_nbytes`` counts it.

    ``drop``: called instead of it if the request is refused after all. ``respond``: makes another response than one
    that sends the answer.
    """

    call: GenerateCall
    send_answer: SendAnswer
    drop: Callable[[], Awaitable[None]] | None = None
    respond: Callable[[RequestTask], Response] | None = None


Complete = Callable[[ParsedRequest, ResponseStore, str, RequestResources], Awaitable[ParsedRequest]]
"""complete(parsed, responses, owner, resources): adds what is stored to a request. ``owner``: name of its API key.
Reserves memory for what it reads."""
Parsed = TypeVar("Parsed")
Parse = Callable[[bytes | bytearray, Mapping[str, SplitUrl], ServedModel, float], Parsed]
"""parse(body, split_urls, model, arrival_s). ``split_urls``: the images that were cut out of the body, by their marks.
Raises MmserveError naming the field, and UrlsLeft if an image is in the place of another value."""


@dataclass(frozen=True)
class Protocol(Generic[Parsed]):
    """One route that reads a prompt. Those that generate an answer parse to a ParsedRequest.

    ``complete`` is called after ``parse``. For the OpenAPI document: ``body_type`` and ``answer_type`` are the structs
    of the body and of the whole answer; ``streams``: the client may ask for events in its place.
    """

    path: str
    name: str
    description: str
    parse: Parse[Parsed]
    body_type: Any
    answer_type: Any
    streams: bool = False
    complete: Complete | None = None


async def parse_request(
    protocol: Protocol[Parsed], body: bytes | bytearray, model: ServedModel, arrival_s: float
) -> Parsed:
    """``parse_body``, in a thread if its work is more than a few milliseconds."""
    rest, urls = _split(body, model)
    if len(rest) <= QUICK_NBYTES:
        return _parse_split(protocol.parse, rest, urls, model, arrival_s)
    return await asyncio.to_thread(_parse_split, protocol.parse, rest, urls, model, arrival_s)


def parse_body(protocol: Protocol[Parsed], body: bytes | bytearray, model: ServedModel, arrival_s: float) -> Parsed:
    """Validate a body. Large images are not copied: the call refers to ``body``.

    Raises MmserveError, naming the field.
    """
    return _parse_split(protocol.parse, *_split(body, model), model, arrival_s)


def _split(body: bytes | bytearray, model: ServedModel) -> tuple[bytes | bytearray, Mapping[str, SplitUrl]]:
    try:
        return split_media(body, max_json_nbytes(model.max_model_len))
    except TooMuchText:
        raise too_much_text(model.max_model_len) from None


def _parse_split(
    parse: Parse[Parsed], rest: bytes | bytearray, urls: Mapping[str, SplitUrl], model: ServedModel, arrival_s: float
) -> Parsed:
    """Parse a body without its ``urls``. They are put back where they are no images, or where an error may name them,
    and then are so much text."""
    check_values(rest)
    try:
        return parse(rest, urls, model, arrival_s)
    except UrlsLeft as error:
        left = error.urls
    except MmserveError:
        if urls:
            parse(put_back(rest, urls, shortened=True), {}, model, arrival_s)
        raise
    if len(rest) + sum(len(url.data) for url in left.values()) > max_json_nbytes(model.max_model_len):
        raise too_much_text(model.max_model_len)
    images = {mark: url for mark, url in urls.items() if mark not in left}
    return parse(put_back(rest, left), images, model, arrival_s)
