"""What a front knows of its replicas, and where it sends a request."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from heapq import heappop, heappush
from random import Random

from mmserve.cluster.scale.expected import Expected
from mmserve.cluster.scale.holdings import HoldingsTable
from mmserve.cluster.scale.loads import FORGOTTEN_S, ReplicaLoad
from mmserve.cluster.scale.policy import Choice, Policy, Want
from mmserve.cluster.scale.reports import Holdings, Kind, Load
from mmserve.cluster.scale.ring import Ring
from mmserve.cluster.scale.suspects import Suspects

_SILENT_S = 2.0
"""Age of a replica's last report, beside the newest of all, from which on it counts as stopped or cut off. Its
connections may stay open, so a client that is sent there would wait. An idle replica reports once a second."""
_MUTE_S = 3.0
"""So long a busy replica keeps silent, if at all. It is asked whether it still answers."""


class Cluster:
    """``now_s``, wherever it is asked for: of one monotonic clock. ``seed``: of the random candidates."""

    def __init__(self, seed: int = 0) -> None:
        self.tables: dict[Kind, HoldingsTable] = {"pictures": HoldingsTable(), "blocks": HoldingsTable()}
        self.decisions: Counter[str] = Counter()
        """By reason."""
        self._replicas: list[str] = []
        self._loads: dict[str, ReplicaLoad] = {}
        self._ring = Ring()
        self._suspects = Suspects()
        self._expected = Expected()
        self._in_flight = 0
        """Of all replicas together."""
        self._oldest: list[tuple[float, str]] = []
        """A heap: when a replica got the oldest request that counts, or before. One for each in ``_counted``."""
        self._counted: set[str] = set()
        self._heard: OrderedDict[str, None] = OrderedDict()
        """Replicas that report, the one that did so last at the end."""
        self._silent: set[str] = set()
        self._policy = Policy(
            self._replicas,
            self._ring,
            self.tables["pictures"],
            self._expected,
            self.tables["blocks"],
            self._loads,
            Random(seed),
        )

    @property
    def replicas(self) -> tuple[str, ...]:
        """Ids, in the order in which they joined."""
        return tuple(self._replicas)

    def set_replicas(self, replicas: Iterable[str]) -> None:
        """All that there are now. Ids stay the same over a replica's restart: they are its place on the ring."""
        wanted = list(dict.fromkeys(replicas))
        for replica in set(self._replicas) - set(wanted):
            self._leave(replica)
        new = [replica for replica in wanted if replica not in self._loads]
        self._replicas += new
        self._loads.update((replica, ReplicaLoad()) for replica in new)
        self._ring.add(new)

    def _leave(self, replica: str) -> None:
        self._replicas.remove(replica)
        self._in_flight -= self._loads.pop(replica).in_flight
        self._ring.remove(replica)
        self._suspects.forget(replica)
        self._silent.discard(replica)
        self._heard.pop(replica, None)
        self._expected.forget(replica)
        for table in self.tables.values():
            table.forget(replica)

    def hold(self, replica: str, report: Holdings) -> bool:
        """Apply a replica's report. False: ask it for a snapshot. Reports of those that have left are ignored."""
        if replica not in self._loads:
            return True
        if report.kind == "pictures":
            self._expected.settle(replica, report.added)
        return self.tables[report.kind].apply(replica, report)

    def load(self, replica: str, load: Load, now_s: float) -> None:
        """Apply a replica's report of its load."""
        if (known := self._loads.get(replica)) is not None:
            before = known.in_flight
            known.report(load, now_s)
            self._in_flight += known.in_flight - before
            self._heard[replica] = None
            self._heard.move_to_end(replica)
            if replica in self._silent:
                self._silent.remove(replica)
                self._suspects.answer(replica)

    def reported(self, replica: str) -> Load:
        """What it told last of its load."""
        return self._loads[replica].reported

    def reported_at_s(self, replica: str) -> float:
        """When it told its load last; minus infinity: never."""
        return self._loads[replica].reported_at_s

    def choose(self, want: Want, now_s: float, exclude: Collection[str] = ()) -> Choice | None:
        """The best replica, which counts as sent there. ``exclude``: those that have failed this request already; they
        are asked again only if there is no other. None without replicas."""
        avoid, mean_in_flight = self._now(now_s)
        choice = self._policy.best(want, avoid, exclude, mean_in_flight)
        if choice is not None:
            self.offered(choice, now_s)
            self.sent(choice, want, now_s)
        return choice

    def ranked(self, want: Want, now_s: float, exclude: Collection[str] = ()) -> list[Choice]:
        """A few replicas, best first."""
        avoid, mean_in_flight = self._now(now_s)
        return self._policy.ranked(want, avoid, exclude, mean_in_flight)

    def _now(self, now_s: float) -> tuple[list[str], float | None]:
        """Whom to avoid, and how many requests a replica has on average. Looks at no more replicas than have changed:
        each decision waits for it, and there may be a thousand."""
        self._forget_old(now_s)
        self._expected.forget_old(now_s)
        self._suspect_silent(now_s)
        return self._suspects.avoided(now_s), self._in_flight / len(self._replicas) if self._replicas else None

    def _forget_old(self, now_s: float) -> None:
        """Otherwise a replica that does not report, and gets nothing because it looks busy, would stay so for ever."""
        while self._oldest and self._oldest[0][0] <= now_s - FORGOTTEN_S:
            _, replica = heappop(self._oldest)
            self._counted.remove(replica)
            if (load := self._loads.get(replica)) is not None:
                before = load.in_flight
                load.forget_old(now_s)
                self._in_flight += load.in_flight - before
                self._count(replica, load)

    def _count(self, replica: str, load: ReplicaLoad) -> None:
        """So that ``_forget_old`` finds its oldest request."""
        if replica not in self._counted and (oldest_s := load.oldest_s) is not None:
            self._counted.add(replica)
            heappush(self._oldest, (oldest_s, replica))

    def _suspect_silent(self, now_s: float) -> None:
        """Beside the latest report of all: where this process was late, all are. One that has never reported, or that
        answers although it does not report any more, is as good as another."""
        while self._heard:
            first, last = next(iter(self._heard)), next(reversed(self._heard))
            if self._loads[first].reported_at_s >= self._loads[last].reported_at_s - _SILENT_S:
                return
            del self._heard[first]
            self._silent.add(first)
            self._suspects.fail(first, now_s)

    def mute(self, now_s: float) -> list[str]:
        """Replicas that have said nothing for so long while others have that they may be stopped. To be called when
        one has said something: there are none while nobody does."""
        self._suspect_silent(now_s)
        if not (self._silent and self._heard):
            return []
        latest_s = self._loads[next(reversed(self._heard))].reported_at_s
        return [each for each in self._silent if self._loads[each].reported_at_s < latest_s - _MUTE_S]

    def offered(self, choice: Choice, now_s: float) -> None:
        """The replica counts as having the request from now on, so that those which are decided meanwhile see it."""
        if (load := self._loads.get(choice.replica)) is not None:
            before = load.in_flight
            load.send(choice.work_s, now_s)
            self._in_flight += load.in_flight - before
            self._count(choice.replica, load)
            self._suspects.probe(choice.replica, now_s)

    def withdrawn(self, choice: Choice) -> None:
        """The replica was offered the request and does not get it."""
        if (load := self._loads.get(choice.replica)) is not None:
            before = load.in_flight
            load.withdraw(choice.work_s)
            self._in_flight += load.in_flight - before

    def sent(self, choice: Choice, want: Want, now_s: float) -> None:
        """The request, which was offered to the replica, was sent there. Nothing happens if it has left meanwhile."""
        if choice.replica in self._loads:
            held = self.tables["pictures"].names(choice.replica)
            self._expected.add(choice.replica, [name for name in want.pictures if name not in held], now_s)
            self.decisions[choice.reason] += 1

    def failed(self, replica: str, now_s: float) -> None:
        """A request sent there got no answer, or a broken one."""
        if replica in self._loads:
            self._suspects.fail(replica, now_s)
            self._expected.forget(replica)

    def answered(self, replica: str) -> None:
        """A request sent there was answered."""
        self._suspects.answer(replica)
