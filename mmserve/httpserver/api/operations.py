"""Routes for operators and probes: ``/health``, ``/ready``, ``/live``, ``/version``, ``/metrics``."""

from __future__ import annotations

import httpx2
import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from mmserve.httpserver.context import WorkerContext
from mmserve.runtime.errors import Unavailable

_SCRAPE_TIMEOUT_S = 10.0


def operation_routes(context: WorkerContext) -> APIRouter:
    """Each route takes GET and HEAD, since load balancers probe with either."""
    router = APIRouter(tags=["operations"])

    async def ready() -> Response:
        """200 if a request could succeed now; otherwise 503 with the phase."""
        admission = context.admission
        status = {"status": "ok" if admission.ready else "unavailable", "phase": admission.phase_name}
        if admission.phase.detail:
            status["detail"] = admission.phase.detail
        return _json(status, 200 if admission.ready else 503)

    async def live() -> Response:
        """200 whenever this process responds."""
        return _json({"status": "ok"})

    async def version() -> Response:
        return _json({"version": context.deployment.version})

    async def metrics() -> Response:
        """Prometheus text of all processes, from the metrics server."""
        context.metrics.flush()
        return await _scrape(context)

    for path, endpoint in (
        ("/health", ready),
        ("/ready", ready),
        ("/live", live),
        ("/version", version),
        ("/metrics", metrics),
    ):
        router.add_api_route(path, endpoint, methods=["GET"], response_class=Response)
        router.add_api_route(path, endpoint, methods=["HEAD"], response_class=Response, include_in_schema=False)
    return router


async def _scrape(context: WorkerContext) -> Response:
    transport = httpx2.AsyncHTTPTransport(uds=str(context.endpoints.metrics_http))
    try:
        async with httpx2.AsyncClient(transport=transport, timeout=_SCRAPE_TIMEOUT_S) as client:
            answer = await client.get("http://metrics/metrics")
    except httpx2.HTTPError as error:
        raise Unavailable("the metrics server does not answer", retry_after_s=1.0) from error
    content_type = answer.headers.get("content-type", "text/plain")
    return Response(answer.content, answer.status_code, headers={"content-type": content_type})


def _json(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status, media_type="application/json")
