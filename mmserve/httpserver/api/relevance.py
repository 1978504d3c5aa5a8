"""Routes that rate documents by their relevance to a query. A generative model cannot, and says so.

The angle between two of its hidden states is no relevance: nothing in its training relates the two, and scores that
look like those of a trained model would be taken for them.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from mmserve.httpserver.api.openapi import WITH_BODY, errors, request_body
from mmserve.httpserver.context import WorkerContext
from mmserve.runtime.errors import InvalidRequest

PATHS = ("/rerank", "/v1/rerank", "/v2/rerank", "/score", "/v1/score")


def relevance_routes(context: WorkerContext) -> APIRouter:
    """Each route answers 400."""
    router = APIRouter(tags=["unsupported"])
    name = context.model.name

    async def refuse() -> Response:
        """400: the served model was not trained to rate relevance."""
        raise InvalidRequest(
            f"{name!r} is a generative model without a trained relevance score; /v1/embeddings gives its vectors",
            param="model",
        )

    for path in PATHS:
        router.add_api_route(
            path,
            refuse,
            methods=["POST"],
            response_class=Response,
            status_code=400,
            responses=errors(WITH_BODY),
            openapi_extra={"requestBody": request_body(dict[str, Any], path)},
        )
    return router
