"""Requests that look at a prompt without an answer to it: counts and token ids. Nothing is leased or generated."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request

from mmserve.httpserver.api.protocol import Parsed, Protocol, parse_request
from mmserve.httpserver.context import WorkerContext
from mmserve.httpserver.http.body import read_body
from mmserve.httpserver.request.resources import RequestResources
from mmserve.runtime.byte_budget import MIB


@asynccontextmanager
async def admitted(
    context: WorkerContext, protocol: Protocol[Parsed], request: Request
) -> AsyncIterator[tuple[Parsed, RequestResources]]:
    """The parsed body. Until the context ends, the request has a place in flight and memory for its body, as a request
    for an answer has. Raises MmserveError."""
    resources = context.admit_request()
    try:
        body = await read_body(request, int(context.deployment.config.max_body_mb * MIB), resources)
        parsed = [await parse_request(protocol, body, context.model, time.monotonic())]
        del body
        yield parsed.pop(), resources  # what is parsed may refer to the body: only the caller may keep it
    finally:
        resources.release()
