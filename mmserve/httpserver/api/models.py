"""``GET /v1/models`` and ``/v1/models/{id}``, in a form that holds the fields of OpenAI's and of Anthropic's."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from mmserve.httpserver.api.openapi import NAMED, answers
from mmserve.httpserver.context import WorkerContext


class ModelCard(msgspec.Struct):
    """``created``, ``owned_by``, ``object`` are OpenAI's, ``root`` and ``max_model_len`` vLLM's, the rest Anthropic's.

    ``max_tokens``: the longest answer. ``context_window`` repeats ``max_model_len``: clients read one or the other.
    """

    id: str
    created: int
    root: str
    max_model_len: int
    context_window: int
    max_input_tokens: int
    max_tokens: int
    display_name: str
    created_at: datetime
    object: str = "model"
    owned_by: str = "mmserve"
    type: str = "model"
    lifecycle: str = "active"


class ModelList(msgspec.Struct):
    data: list[ModelCard]
    first_id: str
    last_id: str
    object: str = "list"
    has_more: bool = False


def model_routes(context: WorkerContext) -> APIRouter:
    """Routes that list the served model, once for each of its names, and describe it by name."""
    router = APIRouter(tags=["models"])
    model, started = context.model, datetime.fromtimestamp(int(time.time()), UTC)
    cards = [_card(context, name, started) for name in model.names]

    @router.get("/v1/models", response_class=Response, responses=answers(ModelList))
    async def list_models() -> Response:
        return _json(ModelList(cards, cards[0].id, cards[-1].id))

    @router.get("/v1/models/{model_id:path}", response_class=Response, responses=answers(ModelCard, NAMED))
    async def get_model(model_id: str) -> Response:
        # A model named by a path loses its leading slash in the URL.
        if not model_id or not {model_id, f"/{model_id}"} & model.aliases:
            raise model.not_found(model_id)
        return _json(next((card for card in cards if card.id == model_id), cards[0]))

    return router


def _card(context: WorkerContext, name: str, started: datetime) -> ModelCard:
    max_model_len = context.model.max_model_len
    longest = max_model_len - 1  # a prompt leaves room for one token, and an answer follows at least one
    return ModelCard(
        id=name,
        created=int(started.timestamp()),
        root=context.deployment.model.path,
        max_model_len=max_model_len,
        context_window=max_model_len,
        max_input_tokens=longest,
        max_tokens=longest,
        display_name=name,
        created_at=started,
    )


def _json(body: object) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
