"""Fetches one URL from the internet with a total timeout and a byte limit; checks the address of every redirect.

The host is resolved once, and the connection goes to the address that was checked, so a second DNS answer (DNS
rebinding) has no effect. No proxy, environment variables, cookies or decompression.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable
from functools import cache
from typing import Any

import httpcore2
import httpx2

from mmserve.httpserver.limits.media_budgets import RequestByteLimit
from mmserve.httpserver.media.addresses import AddressPolicy
from mmserve.httpserver.media.resolver import Resolver
from mmserve.runtime.errors import MediaError, TooLarge
from mmserve.runtime.shortage import has_descriptors, out_of, shortage_of

MAX_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MAX_CONNECTIONS = 64
_KEEPALIVE_S = 15.0
_NO_ANSWER = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError, UnicodeError)


@cache
def _tls() -> ssl.SSLContext:
    """Shared by all pools: reading the system's certificates takes tens of milliseconds."""
    return httpcore2.default_ssl_context()


class _AddressDenied(Exception):
    """The policy denies every address of the host."""


class _CheckedBackend(httpcore2.AsyncNetworkBackend):  # type: ignore[misc, unused-ignore]
    """Resolves the host and connects to its first address that the policy admits and that accepts."""

    def __init__(self, policy: AddressPolicy, resolver: Resolver) -> None:
        self._policy = policy
        self._resolver = resolver
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        failure: Exception = _AddressDenied()
        for address in await self._resolver.addresses(host, port):
            if not self._policy.admits_address(host, address):
                continue
            try:
                return await self._inner.connect_tcp(address, port, timeout, local_address, socket_options)
            except httpcore2.ConnectError as error:
                failure = error
        raise failure


class Fetcher:
    """Fetches images for one worker, with one connection pool."""

    def __init__(self, policy: AddressPolicy, *, timeout_s: float, resolver: Resolver | None = None) -> None:
        self._policy = policy
        self._timeout_s = timeout_s
        self._resolver = resolver or Resolver()
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=_tls(),
            max_connections=_MAX_CONNECTIONS,
            keepalive_expiry=_KEEPALIVE_S,
            network_backend=_CheckedBackend(policy, self._resolver),
        )

    async def get(self, url: str, budget: RequestByteLimit) -> bytes:
        """The response body. Raises MediaError, TooLarge if it exceeds the rest of ``budget``, and Unavailable if too
        many DNS look-ups are in progress or this process is out of descriptors."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._follow(self._parse(url), budget)
        except TimeoutError:
            raise MediaError(f"the image could not be fetched within {self._timeout_s:g} s") from None
        except _AddressDenied:
            raise MediaError("images may not be fetched from that address") from None
        except _NO_ANSWER as error:
            # A look-up of a name does not say why it has failed.
            if (short := shortage_of(error)) or not has_descriptors():
                raise (short or out_of("file descriptors")) from None
            raise MediaError("the image could not be fetched: no usable answer from its host") from None

    async def aclose(self) -> None:
        await self._pool.aclose()
        self._resolver.close()

    async def _follow(self, url: httpx2.URL, budget: RequestByteLimit) -> bytes:
        for _ in range(MAX_REDIRECTS + 1):
            async with self._pool.stream("GET", _target(url), headers=_headers(url)) as response:
                if response.status not in _REDIRECTS:
                    return await _body(response, budget)
                location = _header(response, b"location")
            url = self._parse(location, relative_to=url)
        raise MediaError(f"the image could not be fetched: more than {MAX_REDIRECTS} redirects")

    def _parse(self, text: str, *, relative_to: httpx2.URL | None = None) -> httpx2.URL:
        """Parse and check a URL. Refuses spellings that URL parsers read differently, because the host that is checked
        must be the host that is fetched from."""
        if "\\" in text or any(char <= " " or char == "\x7f" for char in text):
            raise MediaError("the image's URL holds a backslash, blank or control character")
        try:
            url = httpx2.URL(text) if relative_to is None else relative_to.join(text)
        except (httpx2.InvalidURL, ValueError):
            raise MediaError("the image's URL is not valid") from None
        if url.scheme not in ("http", "https") or not url.host or url.userinfo:
            raise MediaError("the image's URL must be http or https, name a host and hold no user name")
        if url.port is not None and not 0 < url.port < 1 << 16:
            raise MediaError("the image's URL names no possible port")
        if not self._policy.admits_host(url.raw_host.decode()):
            raise MediaError("images may not be fetched from that host")
        return url


def _target(url: httpx2.URL) -> httpcore2.URL:
    return httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)


def _headers(url: httpx2.URL) -> list[tuple[bytes, bytes]]:
    return [
        (b"Host", url.netloc),
        (b"User-Agent", b"mmserve"),
        (b"Accept", b"image/*,*/*;q=0.5"),
        (b"Accept-Encoding", b"identity"),
    ]


def _header(response: httpcore2.Response, name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in response.headers if key.lower() == name), "")


async def _body(response: httpcore2.Response, budget: RequestByteLimit) -> bytes:
    if response.status != 200:
        raise MediaError(f"the image could not be fetched: its host answered {response.status}")
    if _header(response, b"content-encoding").lower() not in ("", "identity"):
        raise MediaError("the image could not be fetched: its host sent it compressed")
    announced = _header(response, b"content-length")
    if announced.isdecimal() and int(announced) > budget.left:
        raise TooLarge(budget.message)
    chunks: list[bytes] = []
    async for chunk in response.aiter_stream():
        budget.take(len(chunk))
        chunks.append(chunk)
    return b"".join(chunks)
