"""Routes below ``/v1/responses/``: read a stored response or its input items, delete it; the length of a prompt."""

from __future__ import annotations

from contextlib import ExitStack
from enum import Enum

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mmserve.httpserver.api.openai.responses.events.fold import cancelled, lost
from mmserve.httpserver.api.openai.responses.events.follow import FollowedEvents, Follower
from mmserve.httpserver.api.openai.responses.events.objects import InputTokens, ResponseObject
from mmserve.httpserver.api.openai.responses.history import with_history
from mmserve.httpserver.api.openai.responses.parse import INPUT_TOKENS
from mmserve.httpserver.api.openai.responses.request.fields import check_included
from mmserve.httpserver.api.openai.responses.request.queries import (
    ITEMS_QUERY,
    RETRIEVE_QUERY,
    after_number,
    included,
    item_limit,
)
from mmserve.httpserver.api.openapi import NAMED, WITH_BODY, add_protocol_route, answers
from mmserve.httpserver.api.prompts.prompt_requests import admitted
from mmserve.httpserver.api.response import send_json
from mmserve.httpserver.call import kept_nbytes
from mmserve.httpserver.context import WorkerContext
from mmserve.httpserver.http.disconnect import until_disconnect
from mmserve.httpserver.media.local import decode_small_images
from mmserve.runtime.errors import InvalidRequest, ResponseNotFound, Unavailable, quoted

_TAGS: list[str | Enum] = ["responses"]
_RETRY_AFTER_S = 5.0
_READ_COPIES = 3
"""Memory of a stored response while it is read and sent, as a multiple of its size."""


class Deleted(msgspec.Struct):
    id: str
    object: str = "response"
    deleted: bool = True


class ItemList(msgspec.Struct):
    data: list[msgspec.Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class _ItemId(msgspec.Struct):
    id: str


class _State(msgspec.Struct):
    status: str
    background: bool


class _StoredAnswer(Response):
    """Sends JSON, and then releases the memory that was reserved for it."""

    def __init__(self, body: bytes, held: ExitStack) -> None:
        super().__init__()
        self._json = body
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await send_json(send, self._json)


def stored_routes(context: WorkerContext) -> APIRouter:
    """A response is found only by the API key that made it, at every HTTP worker."""
    router = APIRouter()
    responses = context.responses

    async def reserved(request: Request, id: str, held: ExitStack) -> str:
        """The owner of the response, once there is memory for it."""
        resources = context.admit_request()
        held.callback(resources.release)
        owner: str = request.scope["state"]["key"]
        nbytes = await responses.size(owner, id)
        if nbytes is None:
            raise _not_found(id)
        await resources.reserve_body(_READ_COPIES * nbytes, lambda: until_disconnect(request))
        return owner

    @router.get(
        "/v1/responses/{id}",
        response_class=Response,
        tags=_TAGS,
        responses=answers(ResponseObject, NAMED, streams=True),
        openapi_extra=RETRIEVE_QUERY,
    )
    async def retrieve(request: Request, id: str) -> Response:
        """A stored response. With ``stream``, its events; with ``starting_after``, those after that number."""
        check_included(included(request))
        after = after_number(request)
        with ExitStack() as held:
            owner = await reserved(request, id, held)
            if after is not None:
                if await responses.is_replayable(owner, id) is False:
                    raise InvalidRequest(
                        "only responses that were streamed, or made in the background, can be streamed", param="stream"
                    )
                memory = context.body_memory.empty()
                return FollowedEvents(Follower(responses, owner, id, memory, after), held.pop_all().close)
            body = await responses.body(owner, id, lost)
            if body is None:
                raise _not_found(id)
            return _StoredAnswer(body, held.pop_all())

    @router.delete("/v1/responses/{id}", response_class=Response, tags=_TAGS, responses=answers(Deleted, NAMED))
    async def delete(request: Request, id: str) -> Response:
        """Delete a response. Those that continue it can then not be continued."""
        runner = await responses.delete(request.scope["state"]["key"], id)
        if runner is None:
            raise _not_found(id)
        if runner:
            responses.runs.stop(id, runner)
        return Response(msgspec.json.encode(Deleted(id)), media_type="application/json")

    @router.get(
        "/v1/responses/{id}/input_items",
        response_class=Response,
        tags=_TAGS,
        responses=answers(ItemList, NAMED),
        openapi_extra=ITEMS_QUERY,
    )
    async def input_items(request: Request, id: str) -> Response:
        """The items of the request itself, newest first unless ``order`` is asc."""
        check_included(included(request))
        limit, order = item_limit(request), request.query_params.get("order", "desc")
        if order not in ("asc", "desc"):
            raise InvalidRequest("order must be asc or desc", param="order")
        with ExitStack() as held:
            items = await responses.input_items(await reserved(request, id, held), id)
            page = _page(items if order == "asc" else items[::-1], request.query_params.get("after"), limit)
            return _StoredAnswer(msgspec.json.encode(page), held.pop_all())

    @router.post(
        "/v1/responses/{id}/cancel",
        response_class=Response,
        tags=_TAGS,
        responses=answers(ResponseObject, WITH_BODY),
    )
    async def cancel(request: Request, id: str) -> Response:
        """End a response that is made in the background; the answer is the response with what there was of it. One
        that has ended stays as it is."""
        with ExitStack() as held:
            owner = await reserved(request, id, held)
            runner = await responses.runner(owner, id)
            if runner and await responses.end(id, cancelled, runner):
                responses.runs.stop(id, runner)
            body = await responses.body(owner, id, lost)
            if body is None:
                raise _not_found(id)
            found = msgspec.json.decode(body, type=_State)
            if not found.background:
                raise InvalidRequest("only a response in the background can be cancelled", param="response_id")
            if found.status in ("queued", "in_progress"):
                raise Unavailable("the response cannot be cancelled now", retry_after_s=_RETRY_AFTER_S)
            return _StoredAnswer(body, held.pop_all())

    async def input_tokens(request: Request) -> Response:
        async with admitted(context, INPUT_TOKENS, request) as (parsed, resources):
            owner = request.scope["state"]["key"]
            parsed = await with_history(parsed, responses, owner, resources)
            call = decode_small_images(context.tenants.own(parsed.call, owner))
            del parsed  # its call refers to the body
            resources.hold(kept_nbytes(call))
            count = InputTokens(sum(map(len, (await context.path.token_ids(call, resources)).ids)))
        return Response(msgspec.json.encode(count), media_type="application/json")

    add_protocol_route(router, INPUT_TOKENS, input_tokens, "responses")
    return router


def _page(items: list[bytes], after: str | None, limit: int) -> ItemList:
    ids = [msgspec.json.decode(item, type=_ItemId).id for item in items]
    if after is not None and after not in ids:
        raise InvalidRequest(f"there is no item {quoted(after)}", param="after")
    first = 0 if after is None else ids.index(after) + 1
    shown = ids[first : first + limit]
    data = [msgspec.Raw(item) for item in items[first : first + limit]]
    return ItemList(data, shown[0] if shown else None, shown[-1] if shown else None, first + limit < len(ids))


def _not_found(id: str) -> ResponseNotFound:
    return ResponseNotFound(f"no response {quoted(id)} is stored", param="response_id")
