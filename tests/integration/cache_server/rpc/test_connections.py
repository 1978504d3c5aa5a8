"""The loop that serves all connections, by real sockets: listening, ends of connections, and lack of descriptors."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
import time
from pathlib import Path

import pytest

from mmserve.cache_server.rpc.connections import ConnectionLoop, DisconnectWatch
from mmserve.cache_server.rpc.listener import Listener
from tests.fakes.pictures.cache import until
from tests.fakes.processes.shortages import no_more_descriptors


def nothing() -> None:
    return None


def echo(connected: socket.socket) -> None:
    def serve() -> None:
        with connected:
            while data := connected.recv(16):
                connected.sendall(data)

    threading.Thread(target=serve, daemon=True).start()


def client() -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    made.settimeout(10)
    return made


def test_without_descriptors_a_connection_is_closed_and_others_go_on(tmp_path: Path) -> None:
    ended = threading.Event()
    with client() as early, client() as late, client() as later, ConnectionLoop(ended.set) as loop:
        Listener(loop, tmp_path / "s", echo, ended.set)
        early.connect(str(tmp_path / "s"))
        early.sendall(b"a")
        assert early.recv(16) == b"a"
        with no_more_descriptors():
            late.connect(str(tmp_path / "s"))
            assert late.recv(16) == b""
            early.sendall(b"b")
            assert early.recv(16) == b"b"
            assert not ended.is_set()
        later.connect(str(tmp_path / "s"))
        later.sendall(b"c")
        assert later.recv(16) == b"c"
    assert ended.is_set()
    assert not (tmp_path / "s").exists()


def test_without_even_a_spare_descriptor_a_connection_waits(tmp_path: Path) -> None:
    ended = threading.Event()
    with client() as late, ConnectionLoop(ended.set) as loop:
        listener = Listener(loop, tmp_path / "s", echo, ended.set)
        listener._spare.close()
        with no_more_descriptors():
            late.connect(str(tmp_path / "s"))
            late.sendall(b"a")
            late.settimeout(0.3)
            with pytest.raises(TimeoutError):
                late.recv(16)
            assert not ended.is_set()
        late.settimeout(10)
        assert late.recv(16) == b"a"


def test_a_client_that_cannot_be_served_ends_alone(tmp_path: Path) -> None:
    def broken_once(connected: socket.socket) -> None:
        served.append(connected)
        if len(served) == 1:
            raise RuntimeError("a bug")
        echo(connected)

    served: list[socket.socket] = []
    ended = threading.Event()
    with client() as first, client() as second, ConnectionLoop(nothing) as loop:
        Listener(loop, tmp_path / "s", broken_once, ended.set)
        first.connect(str(tmp_path / "s"))
        assert first.recv(16) == b""
        second.connect(str(tmp_path / "s"))
        second.sendall(b"a")
        assert second.recv(16) == b"a"
        assert not ended.is_set()


def test_a_disconnect_is_told_once() -> None:
    told = threading.Semaphore(0)
    ours, theirs = socket.socketpair()
    with ConnectionLoop(nothing) as loop, ours:
        DisconnectWatch(loop, ours.fileno(), told.release)
        theirs.close()
        assert told.acquire(timeout=10)
        assert not told.acquire(timeout=0.05)


def test_what_cannot_be_watched_leaves_no_descriptor() -> None:
    with ConnectionLoop(nothing) as loop, tempfile.TemporaryFile() as file:
        before = os.listdir("/proc/self/fd")
        with pytest.raises(OSError, match="not permitted"):  # epoll watches no plain files
            DisconnectWatch(loop, file.fileno(), nothing)
        assert os.listdir("/proc/self/fd") == before


def test_timers_are_called_in_order_unless_cancelled() -> None:
    called: list[str] = []
    done = threading.Event()
    ours, theirs = socket.socketpair()
    with ours, theirs, ConnectionLoop(nothing) as loop:
        watch = DisconnectWatch(loop, ours.fileno(), nothing)

        def set_timers() -> None:
            now_s = time.monotonic()
            loop.call_at(now_s + 0.03, done.set)
            loop.call_at(now_s + 0.02, lambda: called.append("second"))
            cancelled = loop.call_at(now_s + 0.015, lambda: called.append("cancelled"))
            loop.call_at(now_s + 0.01, lambda: called.append("first"))
            loop.cancel(cancelled)
            loop.cancel(cancelled)

        loop.call_soon(watch, set_timers)
        assert done.wait(10)
    assert called == ["first", "second"]


def test_a_loop_that_is_stuck_in_a_handler_is_noticed(tmp_path: Path) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def hang(connected: socket.socket) -> None:
        entered.set()
        assert go_on.wait(20)
        connected.close()

    with client() as one, ConnectionLoop(nothing) as loop:
        Listener(loop, tmp_path / "s", hang, nothing)
        assert loop.has_turned()
        until(loop.has_turned)
        one.connect(str(tmp_path / "s"))
        assert entered.wait(10)
        loop.has_turned()
        assert not loop.has_turned()
        assert not loop.has_turned()
        go_on.set()
        until(loop.has_turned)
