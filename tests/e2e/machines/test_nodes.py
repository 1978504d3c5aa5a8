"""Ranks on two nodes answer as ranks on one, token for token, whatever happens to a node meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.nodes.namespaces import network, why_not
from tests.e2e.faults.streams import Answer, answers_of
from tests.e2e.machines.nodes import Nodes, nodes
from tests.e2e.stack import running

_CUT_S = 10.0


@pytest.fixture(scope="module")
def expected() -> list[Answer]:
    """From two ranks on one machine."""
    with running("--tp", "2") as server:
        return asyncio.run(answers_of(server))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with nodes(tmp_path_factory.mktemp("nodes")) as made:
        yield made


@pytest.fixture
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    if reason := why_not():
        pytest.skip(reason)
    with network(2) as made, nodes(tmp_path_factory.mktemp("nodes"), made) as on_it:
        yield on_it


@pytest.mark.faults
def test_ranks_on_two_nodes_answer_as_on_one(pair: Nodes, expected: list[Answer]) -> None:
    assert asyncio.run(answers_of(pair.stack)) == expected


@pytest.mark.faults
def test_a_rank_of_another_node_is_killed(pair: Nodes, expected: list[Answer]) -> None:
    resent = pair.stack.metric("requests_resent_total")
    assert asyncio.run(answers_of(pair.stack, pair.rank().kill)) == expected
    assert pair.stack.metric("requests_resent_total") > resent, "the streams were broken off"
    pair.until_whole()


@pytest.mark.faults
def test_the_supervisor_of_another_node_is_killed(pair: Nodes, expected: list[Answer]) -> None:
    def kill() -> None:
        pair.node.kill()
        pair.restart()

    assert asyncio.run(answers_of(pair.stack, kill)) == expected
    pair.until_whole()


@pytest.mark.nodes
def test_nodes_with_a_network_between_them(apart: Nodes, expected: list[Answer]) -> None:
    """The same in two network namespaces, and with the cable of node 1 pulled for ten seconds."""
    assert apart.network is not None
    assert asyncio.run(answers_of(apart.stack)) == expected
    assert asyncio.run(answers_of(apart.stack, apart.rank().kill)) == expected
    apart.until_whole()
    back = threading.Timer(_CUT_S, apart.network.plug, (1,), {"connected": True})

    def cut() -> None:
        assert apart.network is not None
        apart.network.plug(1, connected=False)
        back.start()

    assert asyncio.run(answers_of(apart.stack, cut)) == expected
    back.join()
    apart.until_whole()


@pytest.mark.nodes
def test_four_ranks_on_two_nodes_answer_as_on_one(tmp_path: Path) -> None:
    if reason := why_not():
        pytest.skip(reason)
    with running("--tp", "4") as server:
        expected = asyncio.run(answers_of(server))
    with network(2) as made, nodes(tmp_path, made, ranks=4) as on_it:
        assert asyncio.run(answers_of(on_it.stack)) == expected
