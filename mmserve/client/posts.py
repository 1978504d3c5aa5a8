"""Many requests at once to one server: JSON in, JSON or lines out, with another try where that can help."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2

from mmserve.client.completions import ServerError, refusal
from mmserve.runtime.patience import Reply, patiently

_CONNECT_TIMEOUT_S = 10.0
_JSON = {"Content-Type": "application/json"}


class PostClient:
    """``url``: of the server, without ``/v1``. ``patience_s``: how long a request is tried again while the server
    refuses it for a reason that passes, or cannot be reached. An async context manager, for one event loop."""

    def __init__(self, url: str, api_key: str | None, patience_s: float) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        timeout = httpx2.Timeout(None, connect=_CONNECT_TIMEOUT_S)
        self.url = url
        self._patience_s = patience_s
        self._http = httpx2.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=timeout)

    async def __aenter__(self) -> PostClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def post(self, path: str, body: bytes) -> Reply:
        """Send a JSON body. Raises ServerError if the server cannot be reached."""
        return await patiently(lambda: self._post(path, body), self._patience_s, ServerError)

    async def _post(self, path: str, body: bytes) -> tuple[Reply, float]:
        try:
            response = await self._http.post(path, content=body, headers=_JSON)
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None
        reply = Reply(response.status_code, response.content, response.headers.get("x-request-id", ""))
        return reply, _seconds(response.headers.get("retry-after"))

    async def get(self, path: str) -> Reply:
        """Raises ServerError if the server cannot be reached."""
        try:
            response = await self._http.get(path)
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None
        return Reply(response.status_code, response.content)

    @asynccontextmanager
    async def lines(self, path: str, body: bytes) -> AsyncIterator[AsyncIterator[str]]:
        """The lines of a streamed answer, as they come. Raises ServerError; there is no second try."""
        try:
            async with self._http.stream("POST", path, content=body, headers=_JSON) as response:
                if response.status_code != 200:
                    raise ServerError(refusal(response.status_code, await response.aread()))
                yield response.aiter_lines()
        except httpx2.HTTPError as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: httpx2.HTTPError) -> ServerError:
        return ServerError(f"{self.url}: {error or type(error).__name__}")


def _seconds(header: str | None) -> float:
    try:
        return max(0.0, float(header or 0))
    except ValueError:  # a date
        return 0.0
