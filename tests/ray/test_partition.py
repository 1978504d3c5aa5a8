"""The cable between a front and a server of another node is pulled: packets are lost, and nobody gets any word of it.
``make ray``, as root."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from benchmarks.nodes.namespaces import network, why_not
from tests.e2e.fronts import front_metric
from tests.e2e.stack import Stack
from tests.e2e.streams import answers_of

pytest.importorskip("ray", reason="replicas on Ray need the extra of that name: make ray")

from benchmarks.nodes import ray_head

_PORT, _CUT_S = 8100, 12.0


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
        back = threading.Timer(_CUT_S, machines.plug, (victim,), {"connected": True})
        begun_s: list[float] = []

        def cut() -> None:
            machines.plug(victim, connected=False)
            back.start()
            begun_s.append(time.monotonic())

        assert asyncio.run(asyncio.wait_for(answers_of(stack, cut), 60)) == expected
        answered_s = time.monotonic() - begun_s[0]
        print(f"all answers after the cable was pulled: {answered_s:.1f} s")
        assert answered_s < _CUT_S, "answers waited for the cable"
        assert front_metric(stack, "resumed_total") >= 1
        back.join()
        assert asyncio.run(answers_of(stack)) == expected
