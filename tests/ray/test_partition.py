"""The cable between a front and a server of another node is pulled: packets are lost, and nobody gets any word of it.
``make ray``, as root."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from benchmarks.nodes.namespaces import Network, network, why_not
from tests.e2e.faults.streams import answers_of
from tests.e2e.machines.fronts import front_metric
from tests.e2e.stack import Stack

pytest.importorskip("ray", reason="replicas on Ray need the extra of that name: make ray")

from benchmarks.nodes import ray_head

_PORT, _CUT_S = 8100, 12.0
_TIMES = 3
"""So many streams that some are at each server: the front keeps what has the same beginning together, up to a bound."""


class _Cable:
    """Of one machine. Calling it pulls the cable, which is plugged in again after a while."""

    def __init__(self, machines: Network, number: int) -> None:
        self._machines = machines
        self._number = number
        self._back = threading.Timer(_CUT_S, machines.plug, (number,), {"connected": True})
        self.begun_s = 0.0

    def __call__(self) -> None:
        self._machines.plug(self._number, connected=False)
        self._back.start()
        self.begun_s = time.monotonic()

    def until_back(self) -> None:
        if self.begun_s:
            self._back.join()


def test_streams_go_on_with_equal_text_when_the_cable_of_a_server_is_pulled(tmp_path: Path) -> None:
    """Ray itself notices after 15 to 30 s."""
    if reason := why_not():
        pytest.skip(reason)
    front, victim = ray_head.SERVERS
    with (
        network(3) as machines,
        machines.from_switch(),
        ray_head.ray_nodes(machines, tmp_path) as (nodes, environment),
    ):
        nodes[front].run(environment, "benchmarks.nodes.ray_deploy", str(_PORT), *ray_head.OPTIONS)
        stack = Stack(f"http://{machines.address(front)}:{_PORT}", 0)
        expected = asyncio.run(answers_of(stack))
        cable = _Cable(machines, victim)
        try:
            assert asyncio.run(asyncio.wait_for(answers_of(stack, cable, _TIMES), 60)) == expected * _TIMES
            answered_s = time.monotonic() - cable.begun_s
            print(f"all answers after the cable was pulled: {answered_s:.1f} s")
            assert answered_s < _CUT_S, "answers waited for the cable"
        finally:
            cable.until_back()
        assert front_metric(stack, "resumed_total") >= 1, "no stream was at the server whose cable was pulled"
        assert asyncio.run(answers_of(stack)) == expected
