"""The health server on real sockets: probes answer from phases and heartbeats."""

from __future__ import annotations

import json
import socket
import tempfile
import urllib.error
import urllib.request
from contextlib import closing

from mmserve.health.heartbeat import HeartbeatSender
from mmserve.health.run import HealthCollector, serving_probes
from mmserve.ipc.channel import Receiver, Sender
from mmserve.ipc.endpoints import Endpoints
from mmserve.messages.reply import ServerPhase
from mmserve.messages.status import HealthInbound


def _ask(listener: socket.socket, path: str) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{listener.getsockname()[1]}{path}", timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_probes_follow_phase_and_heartbeats() -> None:
    collector = HealthCollector()
    with tempfile.TemporaryDirectory(dir="/tmp") as run_dir, socket.create_server(("127.0.0.1", 0)) as listener:
        endpoints = Endpoints(run_dir)
        inbox: Receiver[HealthInbound] = Receiver(endpoints.health, HealthInbound)
        phases: Sender[ServerPhase] = Sender(endpoints.health, HealthInbound)
        with (
            closing(inbox),
            closing(phases),
            serving_probes(listener, collector),
            closing(HeartbeatSender(endpoints, "router-0")) as heartbeats,
        ):
            assert _ask(listener, "/live")[0] == 200
            assert _ask(listener, "/ready")[0] == 503
            phases.send(ServerPhase(phase="ready", ready=True))
            collector.apply(inbox.receive())
            heartbeats.beat(busy=False)
            collector.apply(inbox.receive())
            status, report = _ask(listener, "/health")
            assert status == 200
            assert report["phase"] == "ready"
            assert "router-0" in report["processes"]
            assert _ask(listener, "/nothing")[0] == 404
