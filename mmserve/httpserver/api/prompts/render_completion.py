"""``/v1/completions/render``: the token ids of each prompt of a completion, as vLLM answers and llm-d asks for them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mmserve.httpserver.api.openai.completions.request import COMPLETIONS, CompletionRequest
from mmserve.httpserver.api.openapi import add_protocol_route
from mmserve.httpserver.api.prompts.prompt_requests import admitted
from mmserve.httpserver.api.protocol import Protocol
from mmserve.httpserver.call import GenerateCall, kept_nbytes
from mmserve.httpserver.context import WorkerContext
from mmserve.httpserver.media.split_media import SplitUrl
from mmserve.httpserver.served_model import ServedModel

_TOKEN_NBYTES = 50
"""Memory of one token: its id, and its JSON."""


class RenderedPrompt(msgspec.Struct):
    """One prompt of a completion."""

    model: str
    token_ids: list[int]


def _parse(
    body: bytes | bytearray, split_urls: Mapping[str, SplitUrl], model: ServedModel, arrival_s: float
) -> GenerateCall:
    """See ``protocol.Parse``."""
    return COMPLETIONS.parse(body, split_urls, model, arrival_s).call


RENDER_COMPLETION = Protocol(
    path="/v1/completions/render",
    name="render",
    description="The token ids of the prompts of a completion; nothing is generated.",
    parse=_parse,
    body_type=CompletionRequest,
    answer_type=list[RenderedPrompt],
)


def render_completion_routes(context: WorkerContext) -> APIRouter:
    """The route is admitted and counted as requests for an answer are."""
    router = APIRouter()

    async def render(request: Request) -> Response:
        async with admitted(context, RENDER_COMPLETION, request) as (call, resources):
            resources.hold(kept_nbytes(call))
            prompts = (await context.path.token_ids(call, resources)).ids
            resources.hold(kept_nbytes(call) + _TOKEN_NBYTES * sum(map(len, prompts)))

            def answer() -> bytes:
                return msgspec.json.encode([RenderedPrompt(call.model, list(ids)) for ids in prompts])

            body = await context.path.prompt_threads.run(answer)
        return Response(body, media_type="application/json")

    add_protocol_route(router, RENDER_COMPLETION, render, "tokens")
    return router
