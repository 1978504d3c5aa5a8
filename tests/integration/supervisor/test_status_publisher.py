"""Epochs as HTTP workers receive them."""

from __future__ import annotations

import socket
import time
from contextlib import closing
from pathlib import Path

from mmserve.ipc.links.channel import Receiver
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.reply import HttpInbound, ServerPhase
from mmserve.messages.request import EngineInbound, WorkerDied
from mmserve.supervisor.status_publisher import StatusPublisher
from mmserve.supervisor.topology import Member, Role


def test_each_visual_server_has_an_epoch_and_the_ranks_share_one(tmp_path: Path) -> None:
    endpoints = Endpoints(tmp_path)
    http = Role("httpserver", "", listens="http")
    visual, rank = Role("visualserver", "", count=3, epoch="visual"), Role("model_backend", "", epoch="engine")
    inbox: Receiver[HttpInbound] = Receiver(endpoints.http(0), HttpInbound)
    with closing(inbox), closing(StatusPublisher(endpoints, visual_workers=3)) as publisher:
        publisher.raise_epoch(Member(visual, 1))
        publisher.raise_epoch(Member(rank, 2))
        publisher.raise_epoch(Member(visual, 1))
        publisher.phase("ready", [Member(http, 0)], ready=True)
        phase = inbox.receive()
    assert isinstance(phase, ServerPhase)
    assert (phase.visual_epochs, phase.engine_epoch, phase.cache_epoch) == ((0, 2, 0), 1, 0)
    assert [phase.visual_epoch(index) for index in (1, 7)] == [2, 0]


def test_router_and_visual_servers_are_told_of_an_http_worker_that_died(tmp_path: Path) -> None:
    endpoints = Endpoints(tmp_path)
    worker, rank = Role("httpserver", "", count=2, listens="http"), Role("model_backend", "")
    receivers: list[Receiver[EngineInbound]] = [
        Receiver(endpoint, EngineInbound) for endpoint in (endpoints.router, endpoints.visual(0), endpoints.visual(1))
    ]
    before_s = time.monotonic()
    with closing(StatusPublisher(endpoints, visual_workers=2)) as publisher:
        publisher.died(Member(rank, 0))
        publisher.died(Member(worker, 1))
        for receiver in receivers:
            with closing(receiver):
                message = receiver.receive()
            assert isinstance(message, WorkerDied)
            assert message.worker == 1
            assert before_s <= message.died_s <= time.monotonic()


def test_the_page_of_an_http_worker_that_died_is_asked_no_more(tmp_path: Path) -> None:
    endpoints, worker = Endpoints(tmp_path), Role("httpserver", "", count=2, listens="http")
    for index in range(2):
        with socket.socket(socket.AF_UNIX) as page:  # nobody listens any more, and the file stays
            page.bind(str(endpoints.requests_http(index)))
    with closing(StatusPublisher(endpoints, visual_workers=0)) as publisher:
        publisher.died(Member(worker, 1))
    assert [endpoints.requests_http(index).exists() for index in range(2)] == [True, False]
