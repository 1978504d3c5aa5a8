from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.nodes import cluster as nodes
from benchmarks.nodes.namespaces import Network
from benchmarks.nodes.relay import Cable
from benchmarks.nodes.rules import ByChance
from benchmarks.nodes.workload import streams, zipf_bodies
from mmserve.cluster.scale.policy import Want

_URLS = [f"http://127.0.0.1:{port}" for port in (8001, 8002, 8003)]


def test_pictures_are_drawn_with_a_zipf_distribution_and_the_same_ones_for_each_rule() -> None:
    bodies = zipf_bodies(400, 10, 1.0, seed=3)
    assert bodies == zipf_bodies(400, 10, 1.0, seed=3)
    counts = Counter(body["messages"][0]["content"][0]["image_url"]["url"] for body in bodies)
    assert len(counts) == 10
    assert max(counts.values()) / 400 > 0.28  # 1 / (1 + 1/2 + ... + 1/10) is 0.34


def test_streams_are_different_and_half_of_them_seeded() -> None:
    bodies = streams(6, tokens=5)
    assert [("seed" in body) for body in bodies] == [False, True] * 3
    assert len({str(body["messages"]) for body in bodies}) == 6


def test_of_two_replicas_by_chance_the_less_busy_one_gets_a_request() -> None:
    async def ask(choices: int) -> list[str]:
        placement, chosen = ByChance(_URLS, choices), []
        async with placement.reserved(Want(), ()) as (busy, _):
            for _ in range(30):
                async with placement.reserved(Want(), ()) as (url, _):
                    chosen.append(url)
        assert busy in _URLS
        return [url for url in chosen if url == busy]

    assert asyncio.run(ask(3)) == []
    assert asyncio.run(ask(1))


def test_a_node_that_does_not_start_leaves_no_other_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whichever is first."""
    events: list[str] = []
    is_up = threading.Event()

    @contextlib.contextmanager
    def node(network: Network, number: int, *arguments: object) -> Iterator[None]:
        if number == 0:
            is_up.wait(20)
            raise TimeoutError("not ready")
        events.append("up")
        is_up.set()
        yield
        events.append("down")

    monkeypatch.setattr(nodes, "node", node)
    with pytest.raises(TimeoutError), nodes.cluster(Network(2), tmp_path, 2):
        pass
    assert events == ["up", "down"]


def test_a_cable_loses_the_share_of_frames_that_was_asked_for_and_keeps_the_order() -> None:
    (one, far), (other, farther) = (socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    with one, far, other, farther:
        for each in (one, other, farther):
            each.setblocking(False)
        cable = Cable(one.fileno(), other.fileno())
        for loss, expected in ((0.0, range(200, 201)), (0.3, range(100, 180)), (1.0, range(1))):
            cable.set(f"delay 0 loss {loss}".encode().split())
            arrived = []
            for number in range(200):
                far.send(bytes([number]))
                cable.take(one.fileno())
                cable.deliver()
                with contextlib.suppress(BlockingIOError):
                    arrived.append(farther.recv(10)[0])
            assert len(arrived) in expected
            assert arrived == sorted(arrived)
