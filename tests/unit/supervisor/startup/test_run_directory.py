"""Run directories are private, and removed after their server has ended, also by a later start."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmserve.runtime import user_cache
from mmserve.runtime.errors import StartupError
from mmserve.supervisor.startup.run_directory import PREFIX, run_directory, sweep


@pytest.fixture
def parent() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


def test_the_run_directory_is_private_and_removed_at_the_end(parent: Path) -> None:
    with run_directory([parent]) as path:
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "router").touch()
    assert list(parent.iterdir()) == []


def test_directories_of_ended_servers_are_removed_and_those_of_live_ones_kept(parent: Path) -> None:
    (parent / f"{PREFIX}dead").mkdir()
    (parent / f"{PREFIX}dead" / "router").touch()
    (parent / "another").mkdir()
    with run_directory([parent]) as living, run_directory([parent]) as second:
        sweep(parent)
        assert {path.name for path in parent.iterdir()} == {"another", living.name, second.name}


def test_the_kernels_of_a_user_without_a_home_are_kept(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are cached beside the run directories, and nothing locks their directory."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    monkeypatch.setenv("TMPDIR", str(parent))
    kernels = user_cache.directory() / "kernels.so"
    kernels.touch()
    assert kernels.parent.parent == parent
    with run_directory([parent]):
        assert kernels.exists()


def test_a_directory_of_the_user_is_kept(parent: Path) -> None:
    (parent / "mmserve-models").mkdir()
    sweep(parent)
    assert (parent / "mmserve-models").exists()


def test_a_parent_too_long_for_sockets_is_passed_over(parent: Path) -> None:
    deep = parent / ("x" * 90)
    deep.mkdir()
    with run_directory([deep, parent]) as path:
        assert path.parent == parent
    with pytest.raises(StartupError, match="XDG_RUNTIME_DIR"), run_directory([deep]):
        pass


def test_a_parent_without_room_is_passed_over_and_left_as_it_was(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*full: Path) -> None:
        def allocate(fd: int, offset: int, nbytes: int) -> None:
            if any(Path(os.readlink(f"/proc/self/fd/{fd}")).is_relative_to(path) for path in full):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "posix_fallocate", allocate)

    first, second = parent / "a", parent / "b"
    first.mkdir(), second.mkdir()
    fill(first)
    with run_directory([first, second]) as path:
        assert path.parent == second
    fill(first, second)
    with pytest.raises(StartupError, match=r"no room .*/a \(No space left on device\).*/b .*TMPDIR"):
        run_directory([first, second]).__enter__()
    assert not [*first.iterdir(), *second.iterdir()]


def test_directories_are_looked_for_without_writing_to_one(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While all of them are full, the start fails with the line above."""
    for name in ("XDG_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(parent / name))
        (parent / name).mkdir()
    monkeypatch.setattr(tempfile, "gettempdir", lambda: pytest.fail("it writes a file"))
    with run_directory() as path:
        assert path.parent == parent / "XDG_RUNTIME_DIR"
