"""Simulates many replicas behind fronts, by their own tables and policy (``mmserve/cluster/scale``). No server runs.

Requests with one picture each arrive at random; pictures are drawn with a Zipf distribution. A replica encodes one
picture at a time, then computes with a number of slots, and keeps the last pictures that fit. Times are simulated;
only the microseconds of a decision are measured, as CPU time.

    python -m benchmarks.processes.scale_sim
    python -m benchmarks.nodes --only hits --json nodes.json
    python -m benchmarks.processes.scale_sim --measured nodes.json

Without ``--measured``, a picture takes 0.35 s, as those of InternVL do on two cores (README, models), and an answer
1.2 s on average, which is assumed.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
import time
import tracemalloc
from bisect import bisect
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.load import report
from mmserve.cluster.scale.cluster import Cluster
from mmserve.cluster.scale.policy import Want
from mmserve.cluster.scale.reports import Holdings, Load


@dataclass(frozen=True)
class Setting:
    """One cluster and its load. ``rho``: share of what the slots can compute. ``reports_s``: between two reports."""

    replicas: int
    pictures: int
    requests: int
    kept: int = 240
    """Pictures that fit a replica."""
    zipf: float = 1.0
    rho: float = 0.75
    slots: int = 8
    encode_s: float = 0.35
    answer_s: float = 1.2
    fronts: int = 1
    reports_s: float = 0.25
    slow: int = 0
    """Replicas at half speed."""
    flash: bool = False
    """From the middle on, a fifth of the requests have one new picture."""
    restarts: int = 0
    """Replicas that lose all that they hold, one after the other, in the second half."""
    seed: int = 1


@dataclass
class _Replica:
    """One that encodes one picture at a time and computes ``slots`` answers."""

    slots: list[float]
    """When each is free."""
    speed: float = 1.0
    encoder_s: float = 0.0
    held: OrderedDict[int, float] = field(default_factory=OrderedDict)
    """Pictures, and when each is encoded."""
    in_flight: list[float] = field(default_factory=list)
    """When each request ends."""
    served: int = 0
    told: set[int] = field(default_factory=set)
    number: int = 0
    epoch: int = 0


@dataclass
class Outcome:
    """Of one run: what the fronts are judged by."""

    hits: int = 0
    waits_s: list[float] = field(default_factory=list)
    decision_s: list[float] = field(default_factory=list)
    served: list[int] = field(default_factory=list)
    table_mb: float = 0.0


class Simulation:
    """One run of one setting. ``rule``: seconds, random, two (the less busy of two at random), or one (a big server,
    with the slots, the encoders and the room of all replicas)."""

    def __init__(self, setting: Setting, rule: str) -> None:
        self._setting = setting
        self._rule = rule
        self._random = random.Random(setting.seed)
        count = 1 if rule == "one" else setting.replicas
        self._size = setting.replicas if rule == "one" else 1
        self._replicas = [_Replica([0.0] * setting.slots * self._size) for _ in range(count)]
        for replica in self._replicas[: setting.slow if count > 1 else 0]:
            replica.speed = 0.5
        self._names = [f"node{number}" for number in range(count)]
        self._fronts = [Cluster(seed) for seed in range(setting.fronts)] if rule == "seconds" else []
        for front in self._fronts:
            front.set_replicas(self._names)
        self._index = {name: number for number, name in enumerate(self._names)}

    def run(self) -> Outcome:
        """Simulate all requests."""
        setting, outcome, now_s = self._setting, Outcome(), 0.0
        arrivals_s = setting.answer_s / (setting.slots * setting.replicas * setting.rho)
        weights = _weights(setting)
        report_s, restart = 0.0, 0
        self._report(0.0)
        for number in range(setting.requests):
            now_s += self._random.expovariate(1 / arrivals_s)
            half = number >= setting.requests // 2
            if half and restart < setting.restarts and number % max(1, setting.requests // 2 // setting.restarts) == 0:
                self._restart(self._replicas[restart % len(self._replicas)])
                restart += 1
            while self._fronts and now_s - report_s >= setting.reports_s:
                report_s += setting.reports_s
                self._report(report_s)
            picture = bisect(weights, self._random.random() * weights[-1])
            if setting.flash and half and self._random.random() < 0.2:
                picture = setting.pictures
            begun = time.thread_time()
            index = self._choose(picture, now_s, number)
            outcome.decision_s.append(time.thread_time() - begun)
            self._serve(self._replicas[index], picture, now_s, outcome)
        outcome.served = [each.served for each in self._replicas]
        outcome.table_mb = self._table_mb() if self._fronts else 0.0
        return outcome

    def _choose(self, picture: int, now_s: float, number: int) -> int:
        count = len(self._replicas)
        if self._rule == "one":
            return 0
        if self._rule == "random":
            return self._random.randrange(count)
        if self._rule == "two":
            pair = self._random.sample(range(count), min(2, count))
            return min(pair, key=lambda index: self._busy(self._replicas[index], now_s))
        front = self._fronts[number % len(self._fronts)]
        choice = front.choose(Want((_name(picture),)), now_s)
        assert choice is not None
        return self._index[choice.replica]

    @staticmethod
    def _busy(replica: _Replica, now_s: float) -> int:
        while replica.in_flight and replica.in_flight[0] <= now_s:
            heapq.heappop(replica.in_flight)
        return len(replica.in_flight)

    def _serve(self, replica: _Replica, picture: int, now_s: float, outcome: Outcome) -> None:
        setting, ready_s = self._setting, now_s
        if picture in replica.held:
            outcome.hits += 1
            ready_s = max(now_s, replica.held[picture])
            replica.held.move_to_end(picture)
        else:
            replica.encoder_s = max(replica.encoder_s, now_s) + setting.encode_s / replica.speed / self._size
            ready_s = replica.encoder_s
            replica.held[picture] = ready_s
            if len(replica.held) > setting.kept * self._size:
                replica.held.popitem(last=False)
        start_s = max(ready_s, heapq.heappop(replica.slots))
        end_s = start_s + setting.answer_s / replica.speed * self._random.uniform(0.5, 1.5)
        heapq.heappush(replica.slots, end_s)
        heapq.heappush(replica.in_flight, end_s)
        replica.served += 1
        outcome.waits_s.append(start_s - now_s)

    def _restart(self, replica: _Replica) -> None:
        replica.held.clear()
        replica.told, replica.epoch, replica.number = set(), replica.epoch + 1, 0

    def _report(self, now_s: float) -> None:
        for name, replica in zip(self._names, self._replicas, strict=True):
            held = {picture for picture, ready_s in replica.held.items() if ready_s <= now_s}
            added, removed = tuple(map(_name, held - replica.told)), tuple(map(_name, replica.told - held))
            told = Holdings("pictures", replica.epoch, replica.number, added, removed, snapshot=not replica.number)
            load = Load(
                max(0.0, replica.slots[0] - now_s),
                max(0.0, replica.encoder_s - now_s),
                self._busy(replica, now_s),
                len(replica.slots),
                self._setting.answer_s / replica.speed / len(replica.slots),
                self._setting.encode_s / replica.speed,
            )
            replica.told, replica.number = held, replica.number + 1
            for front in self._fronts:
                front.hold(name, told)
                front.load(name, load, now_s)

    def _table_mb(self) -> float:
        """Memory of one front's tables, made again with what the replicas hold at the end."""
        tracemalloc.start()
        front = Cluster()
        front.set_replicas(self._names)
        for name, replica in zip(self._names, self._replicas, strict=True):
            front.hold(name, Holdings("pictures", 0, 0, tuple(map(_name, replica.held)), snapshot=True))
        nbytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return nbytes / 2**20


def _weights(setting: Setting) -> list[float]:
    """Of the pictures, each with those before it."""
    return list(itertools.accumulate(1 / rank**setting.zipf for rank in range(1, setting.pictures + 1)))


def bearable(setting: Setting) -> Setting:
    """With fewer requests a second if otherwise the encoders had more than ``rho`` to do with what one big server would
    encode. Where answers are short beside pictures, no rule could keep up, and all would only be judged by how they
    fail."""
    weights, source, misses = _weights(setting), random.Random(setting.seed), 0
    held: OrderedDict[int, None] = OrderedDict()
    for _ in range(setting.requests):
        picture = bisect(weights, source.random() * weights[-1])
        misses += picture not in held
        held[picture] = None
        held.move_to_end(picture)
        if len(held) > setting.kept * setting.replicas:
            held.popitem(last=False)
    encoding_s, answering_s = misses / setting.requests * setting.encode_s, setting.answer_s / setting.slots
    return replace(setting, rho=setting.rho * min(1.0, answering_s / encoding_s))


def _name(picture: int) -> int:
    return (picture + 1) * 0x9E3779B97F4A7C15 % 2**64


def row(title: str, rule: str, outcome: Outcome) -> report.Row:
    """One line of the table."""
    waits, decisions = sorted(outcome.waits_s), sorted(outcome.decision_s)
    mean = sum(outcome.served) / len(outcome.served)
    return {
        "setting": title,
        "rule": rule,
        "hit": f"{outcome.hits / len(waits):.3f}",
        "wait p50 s": f"{waits[len(waits) // 2]:.2f}",
        "p99 s": f"{waits[len(waits) * 99 // 100]:.2f}",
        "most / mean": f"{max(outcome.served) / mean:.2f}",
        "us a decision": f"{1e6 * decisions[len(decisions) // 2]:.0f}",
        "p99 us": f"{1e6 * decisions[len(decisions) * 99 // 100]:.0f}",
        "tables MiB": f"{outcome.table_mb:.1f}" if outcome.table_mb else "",
    }


def settings(requests: int) -> list[tuple[str, Setting, tuple[str, ...]]]:
    """Title, setting, and the rules to compare."""
    every = ("random", "two", "seconds", "one")
    ten = Setting(10, 2000, requests)
    return [
        ("3 replicas, 200 pictures, room for 80", Setting(3, 200, requests, kept=80), every),
        ("10, 2,000, 240", ten, every),
        ("100, 20,000, 240", Setting(100, 20_000, requests * 2), every),
        ("1,000, 200,000, 240", Setting(1000, 200_000, requests * 10), every),
        ("10, Zipf 0.8", Setting(10, 2000, requests, zipf=0.8), ("two", "seconds")),
        ("10, Zipf 1.2", Setting(10, 2000, requests, zipf=1.2), ("two", "seconds")),
        ("10, 4 fronts", Setting(10, 2000, requests, fronts=4), ("seconds",)),
        ("10, 16 fronts", Setting(10, 2000, requests, fronts=16), ("seconds",)),
        ("10, reports every 1 s", Setting(10, 2000, requests, reports_s=1.0), ("seconds",)),
        ("10, reports every 5 s", Setting(10, 2000, requests, reports_s=5.0), ("seconds",)),
        ("10, 16 fronts, every 2 s", Setting(10, 2000, requests, fronts=16, reports_s=2.0), ("seconds",)),
        ("10, one at half speed", Setting(10, 2000, requests, slow=1, rho=0.7), ("two", "seconds")),
        ("10, a flash picture", Setting(10, 2000, requests, flash=True), ("two", "seconds")),
        ("10, 5 restarts", Setting(10, 2000, requests, restarts=5), ("two", "seconds")),
    ]


def large(replicas: int, requests: int) -> list[tuple[str, Setting, tuple[str, ...]]]:
    """One more cluster, for what a front can bear."""
    return [(f"{replicas:,}", Setting(replicas, 200 * replicas, requests), ("seconds",))]


def measured(path: Path) -> dict[str, float]:
    """Seconds that servers took for a picture and for an answer, by ``benchmarks.nodes --only hits``."""
    found = next(each for each in json.loads(path.read_text())["rows"] if each.get("rule") == "seconds")
    return {"encode_s": found["encode ms"] / 1e3, "answer_s": found["answer ms"] / 1e3}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000, help="of a setting with 10 replicas")
    parser.add_argument("--measured", metavar="JSON", type=Path, help="times of benchmarks.nodes in place of constants")
    parser.add_argument("--replicas", type=int, action="append", help="repeatable; only clusters of so many replicas")
    parser.add_argument("--json", metavar="PATH", help="write the rows")
    arguments = parser.parse_args()
    service = {} if arguments.measured is None else measured(arguments.measured)
    asked = [each for count in arguments.replicas or () for each in large(count, arguments.requests)]
    rows = [
        row(title, rule, Simulation(setting, rule).run())
        for title, given, rules in asked or settings(arguments.requests)
        for setting in (bearable(replace(given, **service)),)
        for rule in rules
    ]
    print(report.table(rows))
    report.write_json(arguments.json, rows)


if __name__ == "__main__":
    main()
