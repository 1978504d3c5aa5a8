"""What an operator may change while the server runs. Only there with --enable-admin. Knows no requests."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter
from msgspec import Meta
from starlette.requests import Request
from starlette.responses import Response

from mmserve.httpserver.context import WorkerContext
from mmserve.httpserver.http.body import read_body
from mmserve.runtime.errors import InvalidRequest

_FIELD = "concurrent_alloc_fraction"
_LARGEST_BODY_NBYTES = 4096


class AllocSettings(msgspec.Struct, forbid_unknown_fields=True):
    """Body and answer of ``/admin/alloc``: the share of requests with images that allocate by v2."""

    concurrent_alloc_fraction: Annotated[float, Meta(ge=0, le=1)]


def admin_routes(front: WorkerContext) -> APIRouter:
    """``GET`` and ``POST /admin/alloc``; what one worker is told, all follow."""
    router = APIRouter(tags=["admin"])
    share, has_v2 = front.lanes.split, front.deployment.config.enable_concurrent_alloc

    def answer() -> Response:
        return Response(msgspec.json.encode(AllocSettings(share.fraction)), media_type="application/json")

    @router.get("/admin/alloc", response_class=Response)
    async def get_alloc() -> Response:
        return answer()

    @router.post("/admin/alloc", response_class=Response)
    async def set_alloc(request: Request) -> Response:
        """Holds for every request that comes after the answer, at every worker."""
        wanted = _parse(await read_body(request, _LARGEST_BODY_NBYTES))
        if wanted.concurrent_alloc_fraction and not has_v2:
            raise InvalidRequest("this server was started with --no-enable-concurrent-alloc", param=_FIELD)
        share.fraction = wanted.concurrent_alloc_fraction
        return answer()

    return router


def _parse(body: bytes | bytearray) -> AllocSettings:
    try:
        return msgspec.json.decode(body, type=AllocSettings)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"expected {{{_FIELD!r}: a number from 0 to 1}}: {error}", param=_FIELD) from None
