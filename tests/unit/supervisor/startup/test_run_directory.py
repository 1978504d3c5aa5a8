"""Run directories are private, and removed after their server has ended, also by a later start."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmserve.runtime.errors import StartupError
from mmserve.supervisor.startup.run_directory import run_directory, sweep


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
    (parent / "mmserve-dead").mkdir()
    (parent / "mmserve-dead" / "router").touch()
    (parent / "another").mkdir()
    with run_directory([parent]) as living, run_directory([parent]) as second:
        sweep(parent)
        assert {path.name for path in parent.iterdir()} == {"another", living.name, second.name}


def test_a_parent_too_long_for_sockets_is_passed_over(parent: Path) -> None:
    deep = parent / ("x" * 90)
    deep.mkdir()
    with run_directory([deep, parent]) as path:
        assert path.parent == parent
    with pytest.raises(StartupError, match="XDG_RUNTIME_DIR"), run_directory([deep]):
        pass
