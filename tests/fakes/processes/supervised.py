"""A real supervisor over fake servers: ``python -m tests.fakes.processes.supervised --model SCRATCH [flags]``.

The fake servers read orders from files in SCRATCH and write events to SCRATCH/events.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import signal
import sys
import threading
from contextlib import closing
from pathlib import Path

import msgspec

from mmserve.checkpoint.spec import LayerSpec, ModelSpec, TextSpec
from mmserve.cli import main as cli
from mmserve.config.config import Config
from mmserve.config.resolved.deployment import Deployment
from mmserve.config.resolved.process import Process
from mmserve.ipc.links.channel import Receiver
from mmserve.messages.reply import HttpInbound, ServerPhase
from mmserve.monitoring.health.heartbeat import HeartbeatSender
from mmserve.runtime.errors import StartupError
from mmserve.supervisor import run as supervisor_run
from mmserve.supervisor.topology import Role, Topology, topology

TEXT = TextSpec(
    hidden_size=64,
    intermediate_size=128,
    layers=(LayerSpec(),) * 2,
    num_heads=4,
    num_kv_heads=4,
    head_dim=16,
    vocab_size=100,
    max_position=256,
    rms_eps=1e-5,
)
logger = logging.getLogger("mmserve.fake")
FAKED = ("cache_server", "model_backend", "router", "httpserver")
REAL = ("metrics", "health")


def run(process: Process) -> None:
    """A fake server of any role. Its order is one of: serve, refuse REASON, break REASON, hang, stay (ignores SIGTERM),
    wait (until the test opens its FIFO), die, deaf (ready, but reads messages when the test has opened its FIFO)."""
    scratch = Path(process.deployment.model.path)
    order = scratch / f"order-{process.name}"
    verb, _, reason = (order.read_text() if order.exists() else "serve").partition(" ")
    number = _number(scratch, process)
    _tell(scratch, f"start {process.name} {number}")
    logger.info("%s has started", process.name)
    if verb == "refuse":
        raise StartupError(reason)
    if verb == "break":
        raise RuntimeError(reason)
    if verb == "hang":
        # Ignores SIGTERM and never gets ready, like a rank in a collective whose other rank has died.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.sigwait([signal.SIGUSR2])
    if verb == "stay":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if verb == "wait":
        (scratch / f"go-{process.name}").read_bytes()  # a FIFO: returns when the test has opened and closed it
    process.progress(100, 100, "bytes")
    try:
        process.ready({})
        _tell(scratch, f"ready {process.name} {number}")
        if verb == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if verb == "deaf":
            (scratch / f"go-{process.name}").read_bytes()
        _live(process, scratch)
    finally:
        _tell(scratch, f"stop {process.name} {number}")


def _number(scratch: Path, process: Process) -> int:
    """Of earlier starts."""
    with (scratch / f"starts-{process.name}").open("ab") as starts:
        starts.write(b".")
        return starts.tell() - 1


def _live(process: Process, scratch: Path) -> None:
    """Beats until Stop is raised. HTTP workers tell the phases that they get. The file ``busy-NAME`` makes the process
    busy without progress, or silent if that is its text."""
    inbox: Receiver[object] = Receiver(_inbox(process), HttpInbound)
    busy = scratch / f"busy-{process.name}"
    with closing(inbox), closing(HeartbeatSender(process.endpoints, process.name)) as heartbeat:
        while True:
            heartbeat.beat(busy=busy.exists(), progressed=not busy.exists())
            if busy.exists() and busy.read_text() == "silent":
                threading.Event().wait()
            for message in inbox.drain(block=True, timeout_s=0.1):
                _tell(scratch, f"phase {process.name} {msgspec.json.encode(message).decode()}")
                if isinstance(message, ServerPhase) and message.ready:
                    (scratch / f"accepts-{process.name}").touch()
                    process.accepting()


def _inbox(process: Process) -> str:
    if process.role == "httpserver":
        return process.endpoints.http(process.index)
    return f"inproc://{process.name}"


def _tell(scratch: Path, event: str) -> None:
    with (scratch / "events").open("a") as events:
        events.write(event + "\n")


def find_model(config: Config) -> ModelSpec:
    return ModelSpec(family="llama", path=config.model, text=TEXT)


def fake_roles(deployment: Deployment) -> Topology:
    """Fake servers, which real fork servers become; with the file ``real-status`` in SCRATCH, the real metrics and
    health servers as well."""
    roles = topology(deployment)
    real = REAL if (Path(deployment.model.path) / "real-status").exists() else ()
    return [_faked(role) for role in roles if role.preloads or role.name in (*real, *FAKED)]


def _faked(role: Role) -> Role:
    if role.preloads:
        return dataclasses.replace(role, preloads=("tests.fakes.processes.supervised",))
    if role.name in FAKED:
        return dataclasses.replace(role, target="tests.fakes.processes.supervised:run")
    return role


def main() -> int:
    serve = supervisor_run.serve
    supervisor_run.serve = functools.partial(serve, find=find_model, roles=fake_roles)
    return cli.main(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
