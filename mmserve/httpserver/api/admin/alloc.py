"""``/admin/alloc``: the share of requests that allocate by v2, changed at run time."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from mmserve.httpserver.api.openapi import WITH_BODY, answers, request_body
from mmserve.httpserver.context import WorkerContext
from mmserve.httpserver.http.body import read_body
from mmserve.runtime.errors import InvalidRequest

_FIELD = "concurrent_alloc_fraction"
_LARGEST_BODY_NBYTES = 4096


class AllocSettings(msgspec.Struct, forbid_unknown_fields=True):
    """Body and response of ``/admin/alloc``: the share of requests with images that allocate by v2."""

    concurrent_alloc_fraction: Annotated[float, Meta(ge=0, le=1)]


def alloc_routes(context: WorkerContext) -> APIRouter:
    """``GET`` and ``POST /admin/alloc``. A change at one worker applies to all."""
    router = APIRouter(tags=["admin"])
    split, has_v2 = context.alloc_paths.split, context.deployment.config.enable_concurrent_alloc

    def settings_response() -> Response:
        return Response(msgspec.json.encode(AllocSettings(split.fraction)), media_type="application/json")

    @router.get("/admin/alloc", response_class=Response, responses=answers(AllocSettings))
    async def get_alloc() -> Response:
        return settings_response()

    @router.post(
        "/admin/alloc",
        response_class=Response,
        responses=answers(AllocSettings, WITH_BODY),
        openapi_extra={"requestBody": request_body(AllocSettings, "/admin/alloc")},
    )
    async def set_alloc(request: Request) -> Response:
        """Applies to every request that arrives after the response, at every worker."""
        settings = _parse(await read_body(request, _LARGEST_BODY_NBYTES))
        if settings.concurrent_alloc_fraction and not has_v2:
            raise InvalidRequest("this server was started with --no-enable-concurrent-alloc", param=_FIELD)
        split.fraction = settings.concurrent_alloc_fraction
        return settings_response()

    return router


def _parse(body: bytes | bytearray) -> AllocSettings:
    try:
        return msgspec.json.decode(body, type=AllocSettings)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"expected {{{_FIELD!r}: a number from 0 to 1}}: {error}", param=_FIELD) from None
