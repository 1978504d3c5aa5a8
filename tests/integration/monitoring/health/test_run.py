"""The health server on real sockets: probes answer from phases and heartbeats."""

from __future__ import annotations

import json
import os
import socket
import tempfile
import urllib.error
import urllib.request
from contextlib import closing
from typing import Any

from mmserve.ipc.links.channel import Receiver, Sender
from mmserve.ipc.links.endpoints import Endpoints
from mmserve.messages.reply import ServerPhase
from mmserve.messages.status import HealthInbound, ProcessRow, ProcessTable
from mmserve.monitoring.health.heartbeat import HeartbeatSender
from mmserve.monitoring.health.run import HealthCollector, serving_probes


def _ask(listener: socket.socket, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{listener.getsockname()[1]}{path}", timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_probes_follow_phase_and_heartbeats() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as run_dir, socket.create_server(("127.0.0.1", 0)) as listener:
        endpoints = Endpoints(run_dir)
        collector = HealthCollector(endpoints)
        inbox: Receiver[HealthInbound] = Receiver(endpoints.health, HealthInbound)
        supervisor: Sender[HealthInbound] = Sender(endpoints.health, HealthInbound)
        router = ProcessRow("router-0", "router", "engine", os.getpid(), 0.0, 0.0, restarts=0)
        with (
            closing(inbox),
            closing(supervisor),
            serving_probes(listener, collector),
            closing(HeartbeatSender(endpoints, "router-0")) as heartbeats,
        ):
            assert _ask(listener, "/live")[0] == 200
            assert _ask(listener, "/ready")[0] == 503
            heartbeats.beat(busy=False)
            supervisor.send(ServerPhase(phase="ready", ready=True))
            supervisor.send(ProcessTable(supervisor_pid=os.getpid(), started_s=0.0, processes=(router,)))
            for _ in range(2):
                collector.apply(inbox.receive())
            status, report = _ask(listener, "/health")
            assert status == 200
            assert report["phase"] == "ready"
            assert report["processes"]["router-0"]["heartbeat_age_s"] < 10
            assert _ask(listener, "/nothing")[0] == 404
