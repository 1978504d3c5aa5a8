"""Runs a drill: answers of an undisturbed run, then the same questions while faults happen, then what is left over."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx2

from mmserve.cli.chaos.clients import Clients, Failed, Outcome
from mmserve.cli.chaos.leftovers import left_over
from mmserve.cli.chaos.processes import INJECTED, Fault, ServerProcesses
from mmserve.cli.chaos.questions import Question
from mmserve.cli.chaos.resumption import EngineWatch
from mmserve.cli.chaos.schedule import FAULTS, Pace, faults
from mmserve.runtime.errors import StartupError

RECOVERY_TIMEOUT_S = 120.0
_SETTLE_S = 3.0
"""Between a recovery and the next fault, so that streams are under way again."""
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True)
class Plan:
    """``seconds``: duration of the part with faults. ``num_clients``: streams at once. ``faults``: names of FAULTS;
    injected ones are left out for a server without --fault-injection."""

    seconds: float
    num_clients: int = 64
    seed: int = 1
    faults: tuple[str, ...] = tuple(FAULTS)


@dataclass(frozen=True)
class FaultRecord:
    """One fault. ``recovered_s``: seconds from its end until all processes ran and the server was ready; None if it
    never was. ``met``: False for an injected fault that the process had no work to meet in. ``inflicting_s``: seconds
    from ``at_s`` to its end, in which a process may have been stopped."""

    fault: Fault
    at_s: float
    num_live: int
    recovered_s: float | None
    met: bool = True
    inflicting_s: float = 0.0


@dataclass
class Result:
    """What a drill found. ``left_over``: metrics that are not 0 afterwards."""

    outcomes: list[Outcome] = field(default_factory=list)
    faults: list[FaultRecord] = field(default_factory=list)
    left_over: dict[str, float] = field(default_factory=dict)
    engine_ready_s: list[float] = field(default_factory=list)
    """When the engine was ready again after a restart, ascending."""
    pss_before: int = 0
    pss_after: int = 0

    def count(self, verdict: str) -> int:
        return sum(outcome.verdict == verdict for outcome in self.outcomes)

    @property
    def unexplained(self) -> list[Outcome]:
        """Requests that no fault may have ended: all that failed, and connections broken without an HTTP worker's
        death."""
        windows = [
            (record.at_s, record.at_s + record.inflicting_s + (record.recovered_s or RECOVERY_TIMEOUT_S))
            for record in self.faults
            if record.fault.breaks_connections
        ]
        return [
            outcome
            for outcome in self.outcomes
            if outcome.verdict in ("failed", "wrong")
            or (outcome.verdict == "broken" and not any(start <= outcome.ended_s <= end for start, end in windows))
        ]

    @property
    def passed(self) -> bool:
        recovered = all(record.recovered_s is not None for record in self.faults)
        return recovered and not self.unexplained and not self.left_over


def run(
    url: str, plan: Plan, questions: Sequence[Question], say: Callable[[str], None], api_key: str | None = None
) -> Result:
    """Run the drill against the server at ``url``. Raises StartupError if it is not on this machine or not healthy."""
    return asyncio.run(_Drill(url, plan, ServerProcesses.of_url(url), say, api_key).run(questions))


class _Drill:
    def __init__(
        self, url: str, plan: Plan, processes: ServerProcesses, say: Callable[[str], None], api_key: str | None
    ) -> None:
        self._url = url
        self._plan = plan
        self._processes = processes
        self._titles = processes.titles()
        self._say = say
        self._api_key = api_key
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._result = Result()
        self._pace = Pace()

    async def run(self, questions: Sequence[Question]) -> Result:
        model = await self._model()
        clients = Clients(self._url, model, questions, self._api_key)
        try:
            await self._undisturbed(clients)
            async with self._watching_engine():
                await self._disturbed(clients)
        finally:
            await clients.close()
        self._result.outcomes = clients.outcomes
        self._result.left_over = await left_over(self._get_metrics)
        self._result.pss_after = await asyncio.to_thread(self._processes.pss_nbytes)
        return self._result

    async def _undisturbed(self, clients: Clients) -> None:
        self._say("asking every question without faults")
        try:
            # Twice: the second run finds what the first one stored, as later runs will.
            for _ in range(2):
                await clients.ask_undisturbed(self._plan.num_clients)
        except* Failed as failed:
            raise StartupError(str(failed.exceptions[0])) from None
        await left_over(self._get_metrics)
        self._result.pss_before = await asyncio.to_thread(self._processes.pss_nbytes)

    @asynccontextmanager
    async def _watching_engine(self) -> AsyncIterator[None]:
        async with httpx2.AsyncClient(headers=self._headers, trust_env=False) as http:
            watch = EngineWatch(http, self._url)
            watching = asyncio.create_task(watch.run())
            try:
                yield
            finally:
                watching.cancel()
                self._result.engine_ready_s = watch.ready_s

    def _fault_names(self) -> tuple[str, ...]:
        if self._processes.takes_injections:
            return self._plan.faults
        names = tuple(name for name in self._plan.faults if name not in INJECTED)
        if len(names) < len(self._plan.faults):
            self._say("the server runs without --fault-injection: no faults inside its processes")
        return names

    async def _disturbed(self, clients: Clients) -> None:
        deadline_s = time.monotonic() + self._plan.seconds
        stopped = asyncio.Event()
        asking = asyncio.create_task(clients.ask_until(self._plan.num_clients, stopped.is_set))
        try:
            await asyncio.sleep(_SETTLE_S)
            planned = faults(self._titles, seed=self._plan.seed, names=self._fault_names())
            for fault in planned:
                await asyncio.sleep(self._pace.wait_s(fault, time.monotonic()))
                if time.monotonic() + fault.stopped_s >= deadline_s:
                    break
                await self._inflict(fault, clients)
                self._pace.inflicted(fault, time.monotonic())
                if not self._processes.alive:
                    raise StartupError(f"the server ended after {fault.title}: {fault.name}")
                await asyncio.sleep(_SETTLE_S)
        finally:
            stopped.set()
        self._say("no more faults; the last answers end")
        await asking

    async def _inflict(self, fault: Fault, clients: Clients) -> None:
        at_s, num_live = time.monotonic(), clients.num_live
        met = await asyncio.to_thread(self._processes.inflict, fault)
        fault_ended_s = time.monotonic()
        recovered = await self._recovered()
        took_s = time.monotonic() - fault_ended_s
        recovered_s = took_s if recovered else None
        self._result.faults.append(FaultRecord(fault, at_s, num_live, recovered_s, met, fault_ended_s - at_s))
        outcome = f"recovered in {took_s:.1f} s" if recovered else "NOT recovered"
        outcome = outcome if met else "the process had no work to meet it in"
        self._say(f"{fault.title}: {fault.name} with {num_live} streams; {outcome}")

    async def _recovered(self) -> bool:
        """True as soon as all processes run and the server is ready; False after RECOVERY_TIMEOUT_S."""
        deadline_s = time.monotonic() + RECOVERY_TIMEOUT_S
        while time.monotonic() < deadline_s and self._processes.alive:
            # No event tells another process of this: it is looked at.
            await asyncio.sleep(_LOOK_EVERY_S)
            if await asyncio.to_thread(self._processes.titles) == self._titles and await self._ready():
                return True
        return False

    async def _ready(self) -> bool:
        try:
            return (await self._get("/health")).status_code == 200
        except httpx2.TransportError:
            return False

    async def _model(self) -> str:
        try:
            listed = (await self._get("/v1/models")).json()
            return str(listed["data"][0]["id"])
        except (httpx2.TransportError, ValueError, LookupError, TypeError) as error:
            raise StartupError(f"{self._url} does not answer as a server should: {error!r}") from None

    async def _get_metrics(self) -> str:
        return (await self._get("/metrics")).text

    async def _get(self, path: str) -> httpx2.Response:
        async with httpx2.AsyncClient(timeout=10.0, headers=self._headers, trust_env=False) as client:
            return await client.get(self._url + path)
