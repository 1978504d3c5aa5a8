"""A machine that cannot give the shared memory says so in one line."""

from __future__ import annotations

import errno
import os

import pytest

from mmserve.errors import StartupError
from mmserve.ipc.arena import Arena
from mmserve.supervisor.run import arena_of


def test_too_little_shared_memory_names_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(nbytes: int) -> Arena:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Arena, "create", refuse)
    with pytest.raises(StartupError, match=r"--mm-cache-gb: no 2\.0 GiB of shared memory .*No space left"):
        arena_of(2 << 30).__enter__()
