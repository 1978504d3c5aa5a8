"""The order of faults."""

from __future__ import annotations

from itertools import islice

from mmserve.chaos.processes import Fault
from mmserve.chaos.schedule import LONG_STOP_S, SHORT_STOP_S, faults

TITLES = ("cache_server", "httpserver 0", "router")


def test_each_process_has_each_fault_before_any_is_drawn_at_random() -> None:
    first = list(islice(faults(TITLES, seed=1, long_stops=True), 4 * len(TITLES)))
    assert set(first) == {
        Fault(title, kind, seconds)
        for title in TITLES
        for kind, seconds in (("kill", 0.0), ("stop", SHORT_STOP_S), ("stop", LONG_STOP_S), ("garbage", 0.0))
    }
    assert [fault.kind for fault in first[: len(TITLES)]] == ["kill"] * len(TITLES)


def test_the_random_part_follows_the_seed() -> None:
    one, same, other = (list(islice(faults(TITLES, seed=seed, long_stops=True), 60)) for seed in (1, 1, 2))
    assert one == same != other


def test_a_short_drill_has_no_long_stops() -> None:
    assert all(fault.stopped_s < LONG_STOP_S for fault in islice(faults(TITLES, seed=1, long_stops=False), 100))


def test_only_faults_of_http_workers_may_break_connections() -> None:
    assert Fault("httpserver 0", "kill").breaks_connections
    assert Fault("httpserver 0", "stop", 40.0).breaks_connections
    assert not Fault("httpserver 0", "garbage").breaks_connections
    assert not Fault("router", "kill").breaks_connections
