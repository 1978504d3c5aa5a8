"""How soon streams go on after a restart of the engine, as clients see it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import httpx2

_LOOK_EVERY_S = 0.05
_TIMEOUT_S = 0.5


@dataclass(frozen=True)
class Pause:
    """Time inside a stream without an event, in seconds of the monotonic clock.

    ``in_answer``: the stream had said something before, so a client was reading.
    """

    start_s: float
    end_s: float
    in_answer: bool

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


class EngineWatch:
    """Notes when the engine of a server is ready again. ``ready_s``: times of the monotonic clock, ascending."""

    def __init__(self, http: httpx2.AsyncClient, url: str) -> None:
        self.ready_s: list[float] = []
        self._http = http
        self._url = url

    async def run(self) -> None:
        """Look until cancelled; accurate to a twentieth of a second while an HTTP worker answers."""
        was_restarting = False
        while True:
            with contextlib.suppress(httpx2.TransportError, ValueError):  # an HTTP worker is the one that was lost
                response = await self._http.get(f"{self._url}/health", timeout=_TIMEOUT_S)
                if response.status_code == 200 and was_restarting:
                    self.ready_s.append(time.monotonic())
                was_restarting = response.status_code != 200 and response.json().get("phase") == "restarting"
            await asyncio.sleep(_LOOK_EVERY_S)  # no event tells another process of this


def seconds_to_resume(pauses: Iterable[Pause], ready_s: Sequence[float]) -> list[float]:
    """For each answer that stood still while the engine got ready: seconds from then to its next event, ascending.

    Streams without a token before are left out: they wait for their first token, behind the answers that go on.
    """
    waits = []
    for pause in pauses:
        if not pause.in_answer:
            continue
        # The last one: streams that meet another fault before they go on are resumed by the restart after that.
        ready = [each_s for each_s in ready_s if pause.start_s < each_s <= pause.end_s]
        if ready:
            waits.append(pause.end_s - ready[-1])
    return sorted(waits)
