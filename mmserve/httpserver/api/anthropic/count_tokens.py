"""Anthropic's ``/v1/messages/count_tokens``: the length of a prompt, for which nothing is leased or generated."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mmserve.httpserver.api.anthropic.messages import COUNT_TOKENS
from mmserve.httpserver.api.prompt_requests import admitted
from mmserve.httpserver.api.protocol import body_schema
from mmserve.httpserver.call import kept_nbytes
from mmserve.httpserver.context import WorkerContext
from mmserve.httpserver.media.local import decode_small_images


class TokenCount(msgspec.Struct):
    input_tokens: int


def count_routes(context: WorkerContext) -> APIRouter:
    """The route takes a place in flight and memory for its body and its images, as a request for an answer does."""
    router = APIRouter(tags=["generate"])

    async def count_tokens(request: Request) -> Response:
        async with admitted(context, COUNT_TOKENS, request) as (parsed, resources):
            call = decode_small_images(parsed.call)
            del parsed  # its call refers to the body
            resources.hold(kept_nbytes(call))
            count = TokenCount(sum(map(len, await context.path.token_ids(call, resources))))
        return Response(msgspec.json.encode(count), media_type="application/json")

    router.add_api_route(
        COUNT_TOKENS.path,
        count_tokens,
        methods=["POST"],
        name=COUNT_TOKENS.name,
        description=COUNT_TOKENS.description,
        response_class=Response,
        openapi_extra={"requestBody": body_schema(COUNT_TOKENS.body_type)},
    )
    return router
