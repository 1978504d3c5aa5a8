"""The flood's clients: each connection sends its next request when the last one is answered.

The client does as little as possible, because it shares the machine with the server under test.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.images.frontend.bodies import Body

WARM_UP_S = 2.0
_LENGTH = re.compile(rb"content-length: (\d+)", re.IGNORECASE)


@dataclass
class FloodResult:
    """Result of a flood. ``requests``: number of requests answered after the warm-up; ``latencies_s``: of those.

    ``all_requests``: with those of the warm-up.
    """

    requests: int = 0
    all_requests: int = 0
    latencies_s: list[float] = field(default_factory=list)
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.seconds


class Flood:
    """Clients of one server, one for each body."""

    def __init__(self, host: str, port: int, bodies: Sequence[Body]) -> None:
        self._address = host, port
        self._bodies = bodies

    async def run(self, seconds: float, numbers: itertools.count[int]) -> FloodResult:
        """Clients send their bodies repeatedly, for ``seconds`` after the warm-up. ``numbers`` makes every picture new;
        pass the same iterator to all floods."""
        found = FloodResult(seconds=seconds)
        begin_s = time.perf_counter() + WARM_UP_S
        await asyncio.gather(*(self._client(body, begin_s, begin_s + seconds, numbers, found) for body in self._bodies))
        return found

    async def _client(
        self, body: Body, begin_s: float, end_s: float, numbers: itertools.count[int], found: FloodResult
    ) -> None:
        reader, writer = await asyncio.open_connection(*self._address)
        while time.perf_counter() < end_s:
            body.stamp(next(numbers))
            sent_s = time.perf_counter()
            writer.write(body.head)
            writer.write(body.json)
            head = await reader.readuntil(b"\r\n\r\n")
            length = _LENGTH.search(head)
            answer = await reader.readexactly(int(length[1]) if length else 0)
            found.all_requests += 1
            if not head.startswith(b"HTTP/1.1 200"):
                found.errors.append(f"{head[:16]!r} {answer[:200]!r}")
            elif begin_s <= (answered_s := time.perf_counter()) < end_s:
                found.requests += 1
                found.latencies_s.append(answered_s - sent_s)
        writer.close()
