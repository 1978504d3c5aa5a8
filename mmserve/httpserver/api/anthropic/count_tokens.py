"""Anthropic's ``/v1/messages/count_tokens``: the length of a prompt, for which nothing is leased or generated."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mmserve.httpserver.api.anthropic.messages import COUNT_TOKENS, TokenCount
from mmserve.httpserver.api.openapi import add_protocol_route
from mmserve.httpserver.api.prompts.prompt_requests import admitted
from mmserve.httpserver.call import kept_nbytes
from mmserve.httpserver.context import WorkerContext
from mmserve.httpserver.media.local import decode_small_images


def count_routes(context: WorkerContext) -> APIRouter:
    """The route takes a place in flight and memory for its body and its images, as a request for an answer does."""
    router = APIRouter()

    async def count_tokens(request: Request) -> Response:
        async with admitted(context, COUNT_TOKENS, request) as (parsed, resources):
            call = decode_small_images(context.tenants.own(parsed.call, request.scope["state"]["key"]))
            del parsed  # its call refers to the body
            resources.hold(kept_nbytes(call))
            count = TokenCount(sum(map(len, (await context.path.token_ids(call, resources)).ids)))
        return Response(msgspec.json.encode(count), media_type="application/json")

    add_protocol_route(router, COUNT_TOKENS, count_tokens, "generate")
    return router
