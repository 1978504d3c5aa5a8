"""The order of faults."""

from __future__ import annotations

from itertools import islice

import pytest

from mmserve.cli.chaos.processes import Fault
from mmserve.cli.chaos.schedule import FAULTS, LONG_STOP_S, SHORT_STOP_S, chosen, faults
from mmserve.runtime.errors import StartupError

TITLES = ("cache_server", "httpserver 0", "router")


def test_each_process_has_each_fault_before_any_is_drawn_at_random() -> None:
    first = list(islice(faults(TITLES, seed=1, names=tuple(FAULTS)), len(FAULTS) * len(TITLES)))
    assert set(first) == {
        *(Fault(title, kind) for title in TITLES for kind in ("kill", "garbage", "error", "memory", "slow")),
        *(Fault(title, "stop", seconds) for title in TITLES for seconds in (SHORT_STOP_S, LONG_STOP_S)),
    }
    assert [fault.kind for fault in first[: len(TITLES)]] == ["kill"] * len(TITLES)


def test_the_random_part_follows_the_seed() -> None:
    one, same, other = (list(islice(faults(TITLES, seed=seed, names=tuple(FAULTS)), 60)) for seed in (1, 1, 2))
    assert one == same != other


def test_only_the_faults_asked_for_happen() -> None:
    names = chosen("kill, error")
    assert {fault.kind for fault in islice(faults(TITLES, seed=1, names=names), 100)} == {"kill", "error"}
    assert chosen(None) == tuple(FAULTS)
    with pytest.raises(StartupError, match="choose among kill"):
        chosen("kill,eror")


def test_only_faults_of_http_workers_may_break_connections() -> None:
    assert Fault("httpserver 0", "kill").breaks_connections
    assert Fault("httpserver 0", "stop", 40.0).breaks_connections
    assert not Fault("httpserver 0", "garbage").breaks_connections
    assert not Fault("httpserver 0", "error").breaks_connections
    assert not Fault("router", "kill").breaks_connections


def test_faults_are_armed_by_the_name_of_the_process() -> None:
    titles = ("router", "httpserver 1", "model_backend rank 3")
    assert [Fault(title, "error").process for title in titles] == ["router-0", "httpserver-1", "model_backend-3"]
