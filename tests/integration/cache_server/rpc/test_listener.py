"""A listener whose process has no descriptor left: whoever connects waits, and nobody else notices."""

from __future__ import annotations

import os
import resource
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmserve.cache_server.rpc.listener import Listener


def echo(connected: socket.socket) -> None:
    while data := connected.recv(16):
        connected.sendall(data)


@contextmanager
def no_more_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open("/dev/null", os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def client() -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(10)
    return made


def test_without_descriptors_a_connection_waits(tmp_path: Path) -> None:
    ended = threading.Event()
    with client() as early, client() as late, Listener(tmp_path / "s", echo, ended.set):
        early.connect(str(tmp_path / "s"))
        early.sendall(b"a")
        assert early.recv(16) == b"a"
        with no_more_descriptors():
            late.connect(str(tmp_path / "s"))
            early.sendall(b"b")
            assert early.recv(16) == b"b"
            assert not ended.wait(0.3)
        late.sendall(b"c")
        assert late.recv(16) == b"c"
    assert ended.is_set()
