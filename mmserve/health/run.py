"""The health server process."""

from __future__ import annotations

import socket
from contextlib import closing

from mmserve.config.process import Process
from mmserve.health.server import HealthCollector, answering, collect
from mmserve.ipc.channel import Receiver
from mmserve.messages.status import HealthInbound


def run(process: Process) -> None:
    """Serve until SIGTERM."""
    assert process.listen_fd is not None
    ward = HealthCollector()
    inbox: Receiver[HealthInbound] = Receiver(process.endpoints.health, HealthInbound)
    with closing(inbox), socket.socket(fileno=process.listen_fd) as listener, answering(listener, ward):
        process.ready({})
        collect(inbox, ward)
