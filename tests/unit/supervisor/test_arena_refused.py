"""An arena that the machine cannot provide is reported in one line."""

from __future__ import annotations

import errno
import os

import pytest

from mmserve.ipc.arena import Arena
from mmserve.runtime.errors import StartupError
from mmserve.supervisor.inherited import arena_of


def test_too_little_shared_memory_names_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse(monkeypatch, errno.ENOSPC)
    with pytest.raises(StartupError, match=r"--mm-cache-gb: no 2\.0 GiB of .*No space left.* GiB are free\); lower it"):
        arena_of(2 << 30).__enter__()


def test_an_error_about_huge_pages_has_the_number_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse(monkeypatch, errno.ENOMEM)
    with pytest.raises(StartupError, match=r"vm\.nr_hugepages=1025\)"):
        arena_of(2 << 30, huge_pages=True).__enter__()


def test_a_limit_on_the_size_of_files_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _refuse(monkeypatch, errno.EFBIG)
    with pytest.raises(StartupError, match=r"ulimit -f"):
        arena_of(2 << 30).__enter__()


def _refuse(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(nbytes: int, *, huge_pages: bool, when_used: bool) -> Arena:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Arena, "create", refuse)
