"""Names to addresses, in threads of their own: a name server that is silent holds up nobody's other work.

Nothing can end a look-up early, so a few silent name servers may take all threads for half a minute. Whoever asks
meanwhile hears that soon, and addresses need no look-up. Knows no policy and no connection.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_address

from mmserve.runtime.errors import Unavailable

MAX_LOOKUPS = 32
_TURN_S = 1.0
_RETRY_AFTER_S = 5.0
Lookup = Callable[[str, int], list[str]]


def look_up(host: str, port: int) -> list[str]:
    """The system's answer, each address once. Raises OSError, UnicodeError."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class Resolver:
    """Used from one event loop. ``turn_s``: how long a look-up waits for a thread."""

    def __init__(self, lookup: Lookup = look_up, *, max_lookups: int = MAX_LOOKUPS, turn_s: float = _TURN_S) -> None:
        self._lookup = lookup
        self._threads = ThreadPoolExecutor(max_lookups, "resolve")
        self._free = asyncio.Semaphore(max_lookups)
        self._turn_s = turn_s

    async def addresses(self, host: str, port: int) -> list[str]:
        """Of a name, or the literal itself. Raises OSError, UnicodeError, and Unavailable when no thread is free."""
        with suppress(ValueError):
            return [str(ip_address(host))]
        try:
            async with asyncio.timeout(self._turn_s):
                await self._free.acquire()
        except TimeoutError:
            raise Unavailable(
                "too many names of image hosts are still being looked up", retry_after_s=_RETRY_AFTER_S
            ) from None
        loop = asyncio.get_running_loop()

        def ended(_: object) -> None:
            with suppress(RuntimeError):  # the loop may have ended before a look-up does
                loop.call_soon_threadsafe(self._free.release)

        looking = self._threads.submit(self._lookup, host, port)
        looking.add_done_callback(ended)
        return await asyncio.wrap_future(looking)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
