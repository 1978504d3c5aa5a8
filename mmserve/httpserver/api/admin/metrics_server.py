"""Reads pages of the metrics server, over its Unix socket."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from email.parser import BytesParser
from pathlib import Path

from mmserve.runtime.errors import Unavailable

_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class MetricsPage:
    """An answer of the metrics server."""

    status: int
    content_type: str
    body: bytes


async def read_metrics_page(socket_path: Path, path: str) -> MetricsPage:
    """Raises Unavailable if the metrics server does not answer."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            answer = await _get(socket_path, path)
        head, _, body = answer.partition(b"\r\n\r\n")
        status_line, _, headers = head.partition(b"\r\n")
        status = int(status_line.split()[1])
    except (OSError, TimeoutError, ValueError, IndexError) as error:
        raise Unavailable("the metrics server does not answer", retry_after_s=1.0) from error
    content_type = BytesParser().parsebytes(headers, headersonly=True).get("content-type", "text/plain")
    return MetricsPage(status, content_type, body)


async def _get(socket_path: Path, path: str) -> bytes:
    """The whole HTTP/1.0 response.

    Without an HTTP client: making one takes tens of milliseconds, because it loads certificates.
    """
    reader, writer = await asyncio.open_unix_connection(socket_path)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\n\r\n".encode())
        return await reader.read()
    finally:
        writer.transport.abort()
