"""The ASGI app of a worker: its routes, and the response to each kind of error."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from fastapi import FastAPI
from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from mmserve.config.api_keys import load_api_keys
from mmserve.config.resolved.facts import digest_of
from mmserve.httpserver.api.admin.alloc import alloc_routes
from mmserve.httpserver.api.admin.operations import operation_routes
from mmserve.httpserver.api.admin.state import state_routes
from mmserve.httpserver.api.anthropic.count_tokens import count_routes
from mmserve.httpserver.api.anthropic.messages import MESSAGES
from mmserve.httpserver.api.errors import error_response, response_to
from mmserve.httpserver.api.methods import allowed_methods, takes_method
from mmserve.httpserver.api.models import model_routes
from mmserve.httpserver.api.openai.batches.in_process import IN_BACKGROUND, Endpoint
from mmserve.httpserver.api.openai.batches.routes import batch_routes
from mmserve.httpserver.api.openai.batches.runs import BatchRuns
from mmserve.httpserver.api.openai.chat.request import CHAT
from mmserve.httpserver.api.openai.completions.request import COMPLETIONS
from mmserve.httpserver.api.openai.embeddings import EMBEDDINGS
from mmserve.httpserver.api.openai.responses.compact import COMPACT
from mmserve.httpserver.api.openai.responses.parse import RESPONSES
from mmserve.httpserver.api.openai.responses.routes import stored_routes
from mmserve.httpserver.api.openapi import add_protocol_route, describe
from mmserve.httpserver.api.prompts.render import render_routes
from mmserve.httpserver.api.prompts.render_completion import render_completion_routes
from mmserve.httpserver.api.prompts.tokens import token_routes
from mmserve.httpserver.api.protocol import ParsedRequest, Protocol, parse_request
from mmserve.httpserver.api.relayed import take_relay
from mmserve.httpserver.api.relevance import relevance_routes
from mmserve.httpserver.api.response import TaskResponse
from mmserve.httpserver.call import kept_nbytes
from mmserve.httpserver.context import WorkerContext
from mmserve.httpserver.http.auth import ApiKeyAuth
from mmserve.httpserver.http.body import read_body
from mmserve.httpserver.http.browser_guard import BrowserGuard, with_cors
from mmserve.httpserver.http.middleware import RequestMiddleware
from mmserve.httpserver.media.local import decode_small_images
from mmserve.httpserver.webui.files import WebFiles
from mmserve.httpserver.webui.routes import asset_routes, dashboard_route
from mmserve.ipc.links import cluster_key
from mmserve.messages.relay import BY_KEY
from mmserve.messages.request import MAX_PRIORITY
from mmserve.runtime.byte_budget import MIB
from mmserve.runtime.errors import InvalidRequest, MmserveError, NotFound, shortened

PROTOCOLS = (CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, COMPACT)
"""Every route that generates an answer."""


def generate_endpoints(context: WorkerContext) -> dict[str, Endpoint]:
    """What answers each path of PROTOCOLS."""
    return {protocol.path: _generate_endpoint(context, protocol) for protocol in PROTOCOLS}


def make_app(context: WorkerContext, endpoints: Mapping[str, Endpoint], batches: BatchRuns) -> ASGIApp:
    """The app with all routes, wrapped in RequestMiddleware. ``endpoints``: those of ``generate_endpoints``."""
    app = FastAPI(title="mmserve", version=context.deployment.version, redoc_url=None)
    app.include_router(model_routes(context))
    files = WebFiles.read() if context.deployment.config.web_ui else None
    app.include_router(operation_routes(context, files))
    if files is not None:
        app.include_router(asset_routes(files))
        if context.deployment.config.enable_admin:
            app.include_router(dashboard_route(files))
    app.include_router(count_routes(context))
    app.include_router(token_routes(context))
    app.include_router(render_routes(context))
    app.include_router(render_completion_routes(context))
    app.include_router(relevance_routes(context))
    app.include_router(stored_routes(context))
    if context.deployment.config.enable_admin:
        app.include_router(alloc_routes(context))
        app.include_router(state_routes(context))
    app.include_router(batch_routes(context, batches))
    direct = {protocol.path: (protocol, endpoints[protocol.path]) for protocol in PROTOCOLS}
    for protocol, endpoint in direct.values():
        add_protocol_route(app, protocol, endpoint, "generate")
    describe(app, context.model.name)
    for kind in (MmserveError, ClientDisconnect, OSError, MemoryError):
        app.add_exception_handler(kind, _on_error)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(Exception, _on_bug)
    config = context.deployment.config
    guard = BrowserGuard(config.host, config.allowed_hosts, config.allowed_origins)
    guarded = RequestMiddleware(
        _DirectRoutes(app, direct),
        ApiKeyAuth(load_api_keys(config), files.paths if files is not None else frozenset()),
        guard,
        context.metrics,
        response_to,
        partial(takes_method, app.router),
        access_log=config.access_log,
    )
    return with_cors(guarded, config.allowed_origins) if config.allowed_origins else guarded


class _DirectRoutes:
    """Passes POST requests for an answer straight to their endpoints, and all others to ``app``.

    The framework's routing took a tenth of the worker's time for a text of 1 KB. ``app`` has the same routes, for its
    document and for other methods.
    """

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, tuple[Protocol[ParsedRequest], Endpoint]]) -> None:
        self._app = app
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self._endpoints.get(scope["path"]) if scope["method"] == "POST" else None
        if found is None:
            return await self._app(scope, receive, send)
        scope["route"], endpoint = found  # the middleware counts by the route's path
        response = await endpoint(Request(scope, receive))
        await response(scope, receive, send)


def _generate_endpoint(context: WorkerContext, protocol: Protocol[ParsedRequest]) -> Endpoint:
    """An endpoint that generates an answer: admits the request, reads and parses its body, starts its task."""
    config = context.deployment.config
    limit_nbytes = int(config.max_body_mb * MIB)
    secret = None if config.cluster_key_file is None else cluster_key.read(Path(config.cluster_key_file)).fronts
    numbers = digest_of(context.deployment.text_facts)
    server = f"{numbers} {BY_KEY if context.tenants.are_apart else ''}".encode()

    async def generate(request: Request) -> Response:
        arrival_s = time.monotonic()
        async with AsyncExitStack() as unowned:
            resources = context.admit_request()
            unowned.callback(resources.release)
            state = request.scope["state"]
            body, relayed = take_relay(request, await read_body(request, limit_nbytes, resources), secret, numbers)
            parsed = await parse_request(protocol, body, context.model, arrival_s)
            del body
            owner = state["key"]
            if relayed is not None:
                state["server"] = server
                parsed = dataclasses.replace(parsed, call=replace(parsed.call, relayed=relayed))
            if protocol.complete is not None:
                parsed = await protocol.complete(parsed, context.responses, owner, resources)
            if parsed.drop is not None:
                unowned.push_async_callback(parsed.drop)
            call, send_answer, respond = parsed.call, parsed.send_answer, parsed.respond
            call = context.tenants.own(replace(call, http_request_id=state["request_id"]), owner)
            call = decode_small_images(call)
            if state.get(IN_BACKGROUND):
                call = replace(call, priority=MAX_PRIORITY)
            del parsed
            if call.media:
                resources.enter(context.shortages.images())
            resources.hold(kept_nbytes(call))
            traceparent = request.headers.get("traceparent", "")
            task = context.request_tasks.start(call, resources, request.scope["path"], traceparent)
            del call  # its media: only the task may keep them
            unowned.pop_all()
        return TaskResponse(task, send_answer) if respond is None else respond(task)

    return generate


async def _on_error(request: Request, error: Exception) -> Response:
    if (response := response_to(request.scope, error)) is None:
        raise error
    return response


async def _on_http_error(request: Request, error: Exception) -> Response:
    """Errors of the framework (no such route, wrong method) in the form of our own."""
    assert isinstance(error, HTTPException)
    wrapped: MmserveError = (NotFound if error.status_code == 404 else InvalidRequest)(
        f"{request.method} {shortened(request.url.path)}: {error.detail}"
    )
    wrapped.status = error.status_code
    response = error_response(request.scope, wrapped)
    response.headers.update(error.headers or {})
    if error.status_code == 405:
        response.headers["allow"] = ", ".join(allowed_methods(request.app.router, request.scope))
    return response


async def _on_bug(request: Request, error: Exception) -> Response:
    return error_response(request.scope, MmserveError("internal error"))
