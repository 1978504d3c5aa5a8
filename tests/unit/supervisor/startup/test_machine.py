"""The container's limit of cores, from either version of its files; memory and descriptors of this machine."""

from __future__ import annotations

import os
import platform
import resource
from pathlib import Path

import pytest

from mmserve.model_backend.platforms.cpu.library import levels, tile_permission
from mmserve.supervisor.startup.machine import allow_descriptors, look, num_cores
from tests.fakes.processes.shortages import cgroup


def test_this_machine_has_some_memory() -> None:
    assert look().memory_bytes > 0


@pytest.mark.parametrize(
    ("has_all", "permitted", "tiles"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_a_machine_has_tiles_if_the_kernels_would_use_them(
    has_all: bool, permitted: bool, tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two servers whose kernels compute the same say so: a flag alone, or a system that refuses them, is not enough."""
    (level,) = [level for level in levels.LEVELS["x86_64"] if level.name == "amx"]
    flags = level.needs - (set() if has_all else {"amx_int8"})
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(levels, "_flags", lambda: " ".join(flags))
    monkeypatch.setattr(tile_permission, "permitted", lambda: permitted)
    assert look().has_tiles == tiles


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
    cgroup(tmp_path / "fs/cpu/job", **files)
    (tmp_path / "own").write_text("5:cpu:/job\n")
    assert num_cores(tmp_path / "fs", tmp_path / "own", tmp_path / "no topology") == cores


def test_hyper_threads_are_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    for cpu in range(8):
        topology = tmp_path / f"cpu/cpu{cpu}/topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    assert num_cores(tmp_path / "fs", tmp_path / "own", tmp_path) == 4


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
