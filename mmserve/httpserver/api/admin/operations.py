"""Routes for operators and probes: ``/``, ``/health``, ``/ready``, ``/live``, ``/version``, ``/load``,
``/server_info``, ``/metrics``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import APIRouter
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from mmserve.httpserver.api.admin.metrics_server import read_metrics_page
from mmserve.httpserver.api.openapi import answers, errors
from mmserve.httpserver.context import WorkerContext
from mmserve.httpserver.webui.files import WebFiles, wants_page

_PROMETHEUS: dict[int | str, dict[str, Any]] = {
    200: {"description": "Prometheus text", "content": {"text/plain": {"schema": {"type": "string"}}}},
    **errors(),
}


def operation_routes(context: WorkerContext, files: WebFiles | None = None) -> APIRouter:
    """Each route takes GET and HEAD, since load balancers probe with either. ``files``: of the page at ``/``."""
    router = APIRouter(tags=["operations"])

    async def ready() -> Response:
        """200 if a request could succeed now; otherwise 503 with the phase."""
        admission = context.admission
        status = Status(
            "ok" if admission.ready else "unavailable", admission.phase_name, admission.phase.detail or UNSET
        )
        return _json(status, 200 if admission.ready else 503)

    async def live() -> Response:
        """200 whenever this process responds."""
        return _json(Status("ok"))

    async def root(request: Request) -> Response:
        """The web page for browsers. Else 200: some clients ask for this before their first request."""
        if files is not None and wants_page(request):
            return files.by_path["/"].response(request)
        return _json(Name("mmserve"), headers={"vary": "Accept"})

    async def version() -> Response:
        return _json(Version(context.deployment.version))

    async def load() -> Response:
        """Requests in flight in the worker that answers, one of ``http_workers``; ``/metrics`` has those of all."""
        return _json(Load(context.admission.in_flight))

    async def server_info() -> Response:
        """What is served, and how; neither paths nor keys."""
        return _json(_server_info(context))

    async def metrics() -> Response:
        """Prometheus text of all processes, from the metrics server."""
        page = await read_metrics_page(context.endpoints.metrics_http, "/metrics")
        return Response(page.body, page.status, headers={"content-type": page.content_type})

    for path, endpoint, type_ in (
        ("/", root, Name),
        ("/health", ready, Status),
        ("/ready", ready, Status),
        ("/live", live, Status),
        ("/version", version, Version),
        ("/load", load, Load),
        ("/server_info", server_info, ServerInfo),
        ("/metrics", metrics, None),
    ):
        described = _PROMETHEUS if type_ is None else answers(type_)
        if type_ is Name and files is not None:
            described[200]["content"]["text/html"] = {"schema": {"type": "string"}}
        if type_ is Status:
            described[503] = {**described[200], "description": "Not ready"}
        router.add_api_route(path, endpoint, methods=["GET"], response_class=Response, responses=described)
        router.add_api_route(path, endpoint, methods=["HEAD"], response_class=Response, include_in_schema=False)
    return router


class Name(msgspec.Struct):
    name: str


class Status(msgspec.Struct):
    """``phase`` and ``detail``: of the server, where readiness was asked for."""

    status: str
    phase: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET


class Version(msgspec.Struct):
    version: str


class Load(msgspec.Struct):
    server_load: int


class ServerInfo(msgspec.Struct):
    """``max_images``: in one prompt; null for a text model. ``kv_tokens``: null if each rank measures its GPU."""

    version: str
    model: str
    family: str
    max_model_len: int
    vocab_size: int
    hidden_size: int
    max_images: int | None
    device: str
    dtype: str
    tensor_parallel: int
    http_workers: int
    visual_workers: int
    kv_tokens: int | None


def _server_info(context: WorkerContext) -> ServerInfo:
    deployment, model = context.deployment, context.model
    return ServerInfo(
        version=deployment.version,
        model=model.name,
        family=deployment.model.family,
        max_model_len=model.max_model_len,
        vocab_size=model.vocab_size,
        hidden_size=model.hidden_size,
        max_images=model.max_images,
        device=deployment.device,
        dtype=deployment.dtype,
        tensor_parallel=deployment.config.tp,
        http_workers=deployment.config.http_workers,
        visual_workers=deployment.config.visual_workers if deployment.model.vision is not None else 0,
        kv_tokens=deployment.kv_tokens,
    )


def _json(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")
