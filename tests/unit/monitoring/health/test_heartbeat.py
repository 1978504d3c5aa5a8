"""A heartbeat is read whole, whenever its process writes the next one."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from mmserve.ipc.links.endpoints import Endpoints
from mmserve.monitoring.health.heartbeat import HeartbeatSender, read_beat

_WRITER = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from mmserve.monitoring.health.heartbeat import HeartbeatSender
sender = HeartbeatSender(SimpleNamespace(heartbeat=lambda name: Path(sys.argv[1])), "router")
sender.beat(busy=True)
print("ready", flush=True)
while True:
    for _ in range(1000):
        sender.beat(busy=True)
"""
_READS = 20_000


def make_sender(path: Path) -> HeartbeatSender:
    return HeartbeatSender(cast(Endpoints, SimpleNamespace(heartbeat=lambda process: path)), "router")


def test_a_heartbeat_is_there_and_whole_in_every_moment(tmp_path: Path) -> None:
    path = tmp_path / "beat"
    with subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            last = read_beat(path)
            assert last is not None
            for _ in range(_READS):
                beat = read_beat(path)
                assert beat is not None
                assert (beat.pid, beat.busy) == (writer.pid, True)
                assert beat.beat_s >= last.beat_s
                assert beat.progress >= last.progress
                assert beat.progress_s >= last.progress_s
                last = beat
        finally:
            writer.kill()


def test_the_record_is_what_readers_unpack(tmp_path: Path) -> None:
    sender = make_sender(tmp_path / "beat")
    assert read_beat(tmp_path / "beat") is None
    sender.beat(busy=True)
    sender.beat(busy=True, progressed=False)
    beat = read_beat(tmp_path / "beat")
    assert beat is not None
    assert (beat.pid, beat.progress, beat.busy) == (os.getpid(), 1, True)
    assert beat.progress_s < beat.beat_s
    assert len((tmp_path / "beat").read_bytes()) == struct.calcsize("@qddqq")
    sender.close()


def test_a_successor_begins_without_its_predecessors_heartbeat(tmp_path: Path) -> None:
    first = make_sender(tmp_path / "beat")
    first.beat(busy=False)
    first.close()
    second = make_sender(tmp_path / "beat")
    assert read_beat(tmp_path / "beat") is None
    second.close()
