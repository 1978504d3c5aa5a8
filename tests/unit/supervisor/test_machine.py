"""The container's memory limit, from either version of its files."""

from __future__ import annotations

from pathlib import Path

from mmserve.supervisor.machine import container_memory_bytes, look


def _cgroup(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("memory_", "memory.")).write_text(text)


def test_version_2_at_the_root_of_a_container(tmp_path: Path) -> None:
    _cgroup(tmp_path / "fs", memory_max="1000\n", memory_current="700\n", memory_stat="anon 1\ninactive_file 200\n")
    (tmp_path / "own").write_text("0::/\n")
    assert container_memory_bytes(tmp_path / "fs", tmp_path / "own") == 500


def test_the_tightest_of_nested_groups_counts(tmp_path: Path) -> None:
    _cgroup(tmp_path / "fs/a/b", memory_max="max\n", memory_current="1\n", memory_stat="")
    _cgroup(tmp_path / "fs/a", memory_max="50\n", memory_current="20\n", memory_stat="")
    (tmp_path / "own").write_text("0::/a/b\n")
    assert container_memory_bytes(tmp_path / "fs", tmp_path / "own") == 30


def test_version_1(tmp_path: Path) -> None:
    _cgroup(tmp_path / "fs/memory/job", memory_limit_in_bytes="90", memory_usage_in_bytes="40", memory_stat="")
    (tmp_path / "own").write_text("5:cpu:/x\n4:memory:/job\n")
    assert container_memory_bytes(tmp_path / "fs", tmp_path / "own") == 50


def test_no_limit(tmp_path: Path) -> None:
    assert container_memory_bytes(tmp_path, tmp_path / "none") is None


def test_this_machine_has_some_memory() -> None:
    assert look().memory_bytes > 0
