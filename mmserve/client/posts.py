"""Many requests at once to one server: JSON in, JSON or lines out, with another try where that can help."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import httpx2

from mmserve.client.completions import ServerError, refusal

_CONNECT_TIMEOUT_S = 10.0
_RETRIED = frozenset({429, 502, 503})
"""What a server answers that is full or starting."""
_MAX_PAUSE_S = 20.0
_JSON = {"Content-Type": "application/json"}


class Reply(NamedTuple):
    """A whole response. ``request_id``: its x-request-id, if there is one."""

    status: int
    content: bytes
    request_id: str = ""


class PostClient:
    """``url``: of the server, without ``/v1``. ``patience_s``: how long a request is tried again while the server
    refuses it for a reason that passes, or cannot be reached. An async context manager, for one event loop."""

    def __init__(
        self,
        url: str,
        api_key: str | None,
        patience_s: float,
        *,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
        timeout = httpx2.Timeout(None, connect=_CONNECT_TIMEOUT_S)
        self.url = url
        self._patience_s = patience_s
        self._now = now
        self._http = httpx2.AsyncClient(base_url=url, headers=headers, limits=limits, timeout=timeout)

    async def __aenter__(self) -> PostClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def post(self, path: str, body: bytes) -> Reply:
        """Send a JSON body. Raises ServerError if the server cannot be reached."""
        return await patiently(lambda: self._post(path, body), self._patience_s, now=self._now)

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


async def patiently(
    attempt: Callable[[], Awaitable[tuple[Reply, float]]],
    patience_s: float,
    *,
    now: Callable[[], float] = time.monotonic,
) -> Reply:
    """Try until the reply is final or ``patience_s`` have passed. Returns or raises what the last attempt did.

    ``attempt`` returns a reply and the seconds after which the server wants to be asked again, 0 if it does not say.
    """
    deadline_s = now() + patience_s
    pause_s = 0.25
    while True:
        reply, failure, wished_s = None, None, 0.0
        try:
            reply, wished_s = await attempt()
            if reply.status not in _RETRIED:
                return reply
        except ServerError as error:
            failure = error
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)
        # At random, so that requests refused together do not come back together.
        waited_s = min(max(wished_s, pause_s), _MAX_PAUSE_S) * random.uniform(0.5, 1.0)
        if now() + waited_s > deadline_s:
            if failure is not None:
                raise failure
            assert reply is not None
            return reply
        await asyncio.sleep(waited_s)


def _seconds(header: str | None) -> float:
    try:
        return max(0.0, float(header or 0))
    except ValueError:  # a date
        return 0.0
