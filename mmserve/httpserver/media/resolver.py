"""DNS look-ups in threads of their own, so that a name server that does not answer delays no other work.

A look-up cannot be cancelled, so a few such name servers can block all threads for half a minute. During that time,
look-ups fail after a short wait. IP literals need no look-up.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_address

from mmserve.runtime.errors import Unavailable
from mmserve.runtime.retry_after import Turnover
from mmserve.runtime.shortage import out_of

MAX_LOOKUPS = 32
_THREAD_TIMEOUT_S = 1.0
_RETRY_AFTER_S = 5.0
"""Before any look-up has ended."""
Lookup = Callable[[str, int], list[str]]


def look_up(host: str, port: int) -> list[str]:
    """The system resolver's answer, each address once. Raises OSError, UnicodeError."""
    answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in answers))


class Resolver:
    """For one event loop. ``thread_timeout_s``: how long a look-up waits for a free thread."""

    def __init__(
        self, lookup: Lookup = look_up, *, max_lookups: int = MAX_LOOKUPS, thread_timeout_s: float = _THREAD_TIMEOUT_S
    ) -> None:
        self._lookup = lookup
        self._threads = ThreadPoolExecutor(max_lookups, "resolve")
        self._permits = asyncio.Semaphore(max_lookups)
        self._turnover = Turnover(_RETRY_AFTER_S)
        self._thread_timeout_s = thread_timeout_s

    async def addresses(self, host: str, port: int) -> list[str]:
        """Addresses of a host; an IP literal is returned as it is.

        Raises OSError, UnicodeError, and Unavailable if no thread becomes free in time or can be started.
        """
        with suppress(ValueError):
            return [str(ip_address(host))]
        try:
            async with asyncio.timeout(self._thread_timeout_s):
                await self._permits.acquire()
        except TimeoutError:
            raise Unavailable(
                "too many names of image hosts are still being looked up",
                retry_after_s=self._turnover.seconds_until_free(),
            ) from None
        self._turnover.take()
        loop = asyncio.get_running_loop()

        def release(_: object) -> None:
            with suppress(RuntimeError):  # the loop was closed during the look-up
                loop.call_soon_threadsafe(self._on_looked_up)

        try:
            lookup = self._threads.submit(self._lookup, host, port)
        except RuntimeError as error:  # no thread can be started
            self._on_looked_up()
            raise out_of("threads") from error
        lookup.add_done_callback(release)
        return await asyncio.wrap_future(lookup)

    def _on_looked_up(self) -> None:
        self._turnover.give()
        self._permits.release()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
