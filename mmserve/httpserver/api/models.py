"""``GET /v1/models`` and ``/v1/models/{id}`` in OpenAI's form."""

from __future__ import annotations

import time

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from mmserve.httpserver.context import WorkerContext
from mmserve.runtime.errors import ModelNotFound, quoted


class ModelCard(msgspec.Struct):
    id: str
    created: int
    root: str
    max_model_len: int
    object: str = "model"
    owned_by: str = "mmserve"


def model_routes(context: WorkerContext) -> APIRouter:
    """Routes that list the served model and describe it by name."""
    router = APIRouter(tags=["models"])
    model = context.model
    card = ModelCard(model.name, int(time.time()), context.deployment.model.path, model.max_model_len)

    @router.get("/v1/models", response_class=Response)
    async def list_models() -> Response:
        return _json({"object": "list", "data": [card]})

    @router.get("/v1/models/{model_id:path}", response_class=Response)
    async def get_model(model_id: str) -> Response:
        # A model named by a path loses its leading slash in the URL.
        if not model_id or not {model_id, f"/{model_id}"} & model.aliases:
            raise ModelNotFound(f"the model {quoted(model_id)} is not served here; {model.name!r} is", param="model")
        return _json(card)

    return router


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
