"""``/ui/NAME``: scripts, styles and icons of the web pages; and ``/dashboard``. The page at ``/`` has its own route."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from mmserve.httpserver.webui.files import ASSETS, WebFiles
from mmserve.runtime.errors import NotFound, quoted


def asset_routes(files: WebFiles) -> APIRouter:
    """One route for all files, with one series in the metrics."""
    router = APIRouter()

    @router.api_route(ASSETS + "{name}", methods=["GET", "HEAD"], response_class=Response, include_in_schema=False)
    async def asset(name: str, request: Request) -> Response:
        if (file := files.by_path.get(ASSETS + name)) is None:
            raise NotFound(f"there is no file {quoted(name)} here")
        return file.response(request)

    return router


def dashboard_route(files: WebFiles) -> APIRouter:
    """``/dashboard``, for whoever asks: what it shows is read with the API key."""
    router = APIRouter()

    @router.api_route("/dashboard", methods=["GET", "HEAD"], response_class=Response, include_in_schema=False)
    async def dashboard(request: Request) -> Response:
        return files.by_path["/dashboard"].response(request)

    return router
