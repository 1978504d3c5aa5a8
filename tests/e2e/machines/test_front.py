"""A front before two real servers, one of which is lost in mid-stream: every text is what it would have been."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from benchmarks.nodes.namespaces import network, why_not
from tests.e2e.faults.streams import answers_of
from tests.e2e.machines.fronts import fronted, kill
from tests.e2e.machines.steady_load import SteadyLoad
from tests.fakes.pictures.cache import until

_CUT_S = 10.0


@pytest.mark.faults
def test_streams_go_on_with_equal_text_when_a_replica_is_killed(tmp_path: Path) -> None:
    """The replicas have --reports-endpoint: the front finds out where pictures are. Before, each replica is replaced
    under load, without time for its streams to end: they move, and nobody sees it."""
    with fronted(tmp_path) as servers:
        with SteadyLoad(servers.front) as load:
            for number in range(2):
                load.go_on()
                until(lambda: servers.replicas[number].metric("num_requests_in_flight"))  # noqa: B023 - at once
                servers.restart(number)
            load.go_on()
        assert not load.failures
        assert servers.count("resumed_total") >= 1
        expected = load.expected

        def answered_where_a_picture_is() -> bool:
            assert asyncio.run(answers_of(servers.front)) == expected
            return servers.count('decisions_total{reason="held"}') > 0

        until(answered_where_a_picture_is, timeout_s=60)
        victims: list[int] = []
        moved = servers.count("resumed_total")

        def kill_one() -> None:
            victims.append(servers.busy())
            kill(servers.replicas[victims[0]])

        assert asyncio.run(answers_of(servers.front, kill_one)) == expected
        assert servers.count("resumed_total") > moved
        assert asyncio.run(answers_of(servers.front)) == expected
        until(lambda: not servers.replicas[1 - victims[0]].metric("num_requests_in_flight"))


@pytest.mark.nodes
def test_a_cable_is_pulled_for_ten_seconds(tmp_path: Path) -> None:
    """No word comes from the replica: its connections end by TCP keep-alive."""
    if reason := why_not():
        pytest.skip(reason)
    with network(2) as machines, fronted(tmp_path, machines) as servers:
        expected = asyncio.run(answers_of(servers.front))
        timers: list[threading.Timer] = []

        def cut() -> None:
            victim = servers.busy()
            machines.plug(victim, connected=False)
            timers.append(threading.Timer(_CUT_S, machines.plug, (victim,), {"connected": True}))
            timers[0].start()

        started_s = time.monotonic()
        assert asyncio.run(answers_of(servers.front, cut)) == expected
        print(f"with the cable pulled: {time.monotonic() - started_s:.1f} s")
        assert servers.count("resumed_total") >= 1
        timers[0].join()
        assert asyncio.run(answers_of(servers.front)) == expected
