"""Clients disconnect at random moments of a burst. Afterwards the server must hold nothing for any request."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.load.report import Row
from benchmarks.load.server import Target
from benchmarks.memory.burst import TIMEOUT_S, own_figures
from benchmarks.memory.gauges import held_resources, scrape, until_released
from benchmarks.memory.pictures import Body
from mmserve.cli.bench.client import Record, run

_EARLY_SHARE = 0.25
"""Share of the disconnects that happen within _EARLY_S, while bodies are still being received."""
_EARLY_S = 0.5
_RELEASE_S = 60.0


@dataclass(frozen=True)
class Aborted:
    """Result of one burst: the records of requests that were not aborted."""

    records: Sequence[Record]
    num_aborted: int


class _Burst:
    def __init__(self, target: Target, bodies: Sequence[Body], share: float, seed: int) -> None:
        self._rng = random.Random(seed)
        self._to_abort = round(share * len(bodies))
        self._to_answer = len(bodies) - self._to_abort
        self._live = {asyncio.create_task(run(target.url, [body], 1, TIMEOUT_S)) for body in bodies}
        self.records: list[Record] = []
        self.num_aborted = 0

    async def run(self) -> None:
        num_early = round(_EARLY_SHARE * self._to_abort)
        early = [asyncio.create_task(self._abort_early()) for _ in range(num_early)]
        while self._live:
            done, self._live = await asyncio.wait(self._live, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                self.records += [] if task.cancelled() else task.result()[0]
            due = num_early + (self._to_abort - num_early) * len(self.records) / self._to_answer
            while self.num_aborted < due and self._abort():
                pass
        for each in early:
            each.cancel()

    async def _abort_early(self) -> None:
        await asyncio.sleep(self._rng.uniform(0, _EARLY_S))
        self._abort()

    def _abort(self) -> bool:
        """Close the connection of one live request. False if there is none."""
        live = [task for task in self._live if not task.done() and not task.cancelling()]
        if live:
            self._rng.choice(live).cancel()
            self.num_aborted += 1
        return bool(live)


async def _burst(target: Target, bodies: Sequence[Body], share: float, seed: int) -> Aborted:
    burst = _Burst(target, bodies, share, seed)
    await burst.run()
    return Aborted(burst.records, burst.num_aborted)


def check(target: Target, bodies: Sequence[Body], share: float, seed: int) -> list[Row]:
    """One burst with aborts. Returns a row for each gauge of held resources, before and after."""
    before = held_resources(scrape(target.url))
    aborted = asyncio.run(_burst(target, bodies, share, seed))
    failed = [record for record in aborted.records if record.error]
    print(f"{len(bodies)} clients, {aborted.num_aborted} hung up, {len(aborted.records) - len(failed)} answered")
    for error in {record.error for record in failed}:
        print(f"  {error}")
    after, waited_s = until_released(target.url, _RELEASE_S)
    print(f"asked until all was given back: {waited_s:.1f} s; leases leaked: {own_figures(target)['lease_leaks']:g}")
    return [
        {"gauge": name, "before": before.get(name, 0.0), "after": value, "released": "no" if value else "yes"}
        for name, value in after.items()
    ]
