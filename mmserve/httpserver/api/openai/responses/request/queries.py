"""Queries of the routes of stored responses: what they are read to, and how the OpenAPI document describes them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta
from starlette.requests import Request

from mmserve.httpserver.api.openai.responses.request.fields import Included
from mmserve.httpserver.api.openapi import query
from mmserve.runtime.errors import InvalidRequest

_MAX_ITEMS = 100
_DEFAULT_ITEMS = 20
_MAX_DIGITS = 9


RETRIEVE_QUERY = query(
    stream=bool, starting_after=Annotated[int, Meta(ge=0, lt=10**_MAX_DIGITS)], include=list[Included]
)
ITEMS_QUERY = query(
    limit=Annotated[int, Meta(ge=1, le=_MAX_ITEMS)],
    order=Literal["asc", "desc"],
    after=str,
    include=list[Included],
)


def included(request: Request) -> list[str]:
    """Values of ``include``, in either form of a list."""
    return [*request.query_params.getlist("include"), *request.query_params.getlist("include[]")]


def after_number(request: Request) -> int | None:
    """Number of the last event that the client has; None if it asks for no events."""
    stream, after = request.query_params.get("stream", "false"), request.query_params.get("starting_after")
    if stream not in ("true", "1", "false", "0"):
        raise InvalidRequest("stream must be true or false", param="stream")
    if after is None:
        return -1 if stream in ("true", "1") else None
    if not after.isdecimal() or len(after) > _MAX_DIGITS:
        raise InvalidRequest("starting_after must be the number of an event", param="starting_after")
    if stream in ("false", "0"):
        raise InvalidRequest("starting_after needs stream=true", param="starting_after")
    return int(after)


def item_limit(request: Request) -> int:
    given = request.query_params.get("limit", str(_DEFAULT_ITEMS))
    if not given.isdecimal() or not 1 <= int(given[:9]) <= _MAX_ITEMS:
        raise InvalidRequest(f"limit must be from 1 to {_MAX_ITEMS}", param="limit")
    return int(given)
