"""A drill restarts no part of the server so often that the server ends."""

from __future__ import annotations

from mmserve.cli.chaos.processes import Fault
from mmserve.cli.chaos.schedule import FAULTS, Pace, faults
from mmserve.supervisor.watching.restarts import RestartLimit

TITLES = ("httpserver 0", "model_backend rank 0", "model_backend rank 1", "router")


def test_a_drill_of_kills_stays_below_the_servers_limit() -> None:
    pace, now_s, limits = Pace(), 0.0, {"engine": RestartLimit(), "httpserver 0": RestartLimit()}
    planned = faults(TITLES, seed=1, names=("kill",))
    for fault, _ in zip(planned, range(200), strict=False):
        now_s += pace.wait_s(fault, now_s)
        pace.inflicted(fault, now_s)
        group = "engine" if fault.title != "httpserver 0" else fault.title
        assert limits[group].allows(group, now_s)
        limits[group].reset(group)
        now_s += 0.5
    assert now_s > 1000, "the engine is killed four times a minute at most"


def test_faults_that_restart_nothing_need_not_wait() -> None:
    pace = Pace()
    for second in range(100):
        for name in ("garbage", "slow", "stop"):
            fault: Fault = FAULTS[name]("router")
            assert pace.wait_s(fault, second) == 0.0
            pace.inflicted(fault, second)
