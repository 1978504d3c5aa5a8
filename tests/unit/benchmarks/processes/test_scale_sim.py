from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.load import report
from benchmarks.processes.scale_sim import Setting, Simulation, bearable, measured

_SMALL = Setting(4, 200, 4000, kept=80)


def test_the_policy_finds_pictures_that_chance_does_not_and_nobody_waits_longer_for_it() -> None:
    found = {rule: Simulation(_SMALL, rule).run() for rule in ("random", "two", "seconds", "one")}
    hits = {rule: outcome.hits / _SMALL.requests for rule, outcome in found.items()}
    waits_s = {rule: sorted(outcome.waits_s)[_SMALL.requests * 99 // 100] for rule, outcome in found.items()}
    assert hits["seconds"] > 0.9 * hits["one"]
    assert hits["seconds"] > hits["two"] + 0.1
    assert waits_s["seconds"] < waits_s["two"] < waits_s["random"]
    for outcome in found.values():
        assert sum(outcome.served) == _SMALL.requests


def test_a_run_depends_on_its_seed_alone() -> None:
    first, second = (Simulation(_SMALL, "seconds").run() for _ in range(2))
    assert (first.hits, first.waits_s) == (second.hits, second.waits_s)


def test_replicas_that_start_again_are_found_empty() -> None:
    setting = Setting(4, 200, 4000, kept=80, restarts=8)
    assert Simulation(setting, "seconds").run().hits < Simulation(_SMALL, "seconds").run().hits


def test_times_of_servers_take_the_place_of_constants(tmp_path: Path) -> None:
    rows: list[report.Row] = [{"event": "none"}, {"rule": "big", "encode ms": 1.0, "answer ms": 2.0}]
    report.write_json(str(tmp_path / "json"), [*rows, {"rule": "seconds", "encode ms": 700.0, "answer ms": 100.0}])
    slower = Simulation(replace(_SMALL, **measured(tmp_path / "json")), "seconds").run()
    assert sum(slower.waits_s) > sum(Simulation(_SMALL, "seconds").run().waits_s)


def test_no_more_requests_come_than_encoders_can_bear() -> None:
    assert bearable(_SMALL) == _SMALL
    short = replace(_SMALL, encode_s=0.7, answer_s=0.1)
    last_s = [max(Simulation(setting, "one").run().waits_s[-100:]) for setting in (bearable(short), short)]
    assert last_s[0] < 2 * short.encode_s < last_s[1]
