"""Word of connections that end, by real sockets."""

import os
import socket
import tempfile
import threading
from contextlib import closing

import pytest

from mmserve.cache_server.rpc.disconnect_watcher import DisconnectWatcher


def test_whoever_hangs_up_is_told_of_once() -> None:
    told = threading.Semaphore(0)
    ours, theirs = socket.socketpair()
    with closing(DisconnectWatcher()) as hangups, ours:
        hangups.watch(ours.fileno(), told.release)
        theirs.close()
        assert told.acquire(timeout=10)
        assert not told.acquire(timeout=0.05)


def test_what_cannot_be_watched_leaves_no_descriptor() -> None:
    with closing(DisconnectWatcher()) as hangups, tempfile.TemporaryFile() as file:
        before = os.listdir("/proc/self/fd")
        with pytest.raises(OSError, match="not permitted"):  # epoll watches no plain files
            hangups.watch(file.fileno(), lambda: None)
        assert os.listdir("/proc/self/fd") == before
