"""The container's limits of memory and cores, from either version of its files."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from mmserve.supervisor.startup.machine import allow_descriptors, container_memory_bytes, look, num_cores


def _cgroup(directory: Path, **files: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / name.replace("memory_", "memory.").replace("cpu_", "cpu.")).write_text(text)


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


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu_max": "300000 100000\n"}, 3),
        ({"cpu_max": "max 100000\n"}, 8),
        ({"cpu_max": "20000 100000\n"}, 1),
        ({"cpu_cfs_quota_us": "250000", "cpu_cfs_period_us": "100000"}, 2),
        ({"cpu_cfs_quota_us": "-1", "cpu_cfs_period_us": "100000"}, 8),
        ({}, 8),
    ],
    ids=str,
)
def test_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    _cgroup(tmp_path / "fs/cpu/job", **files)
    (tmp_path / "own").write_text("5:cpu:/job\n")
    assert num_cores(tmp_path / "fs", tmp_path / "own") == cores


def test_the_descriptor_limit_is_raised_and_never_lowered() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        allow_descriptors()
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert raised[1] == hard
        assert raised[0] >= min(hard, 4096)
        allow_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == raised
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
