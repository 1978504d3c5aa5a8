"""The memory limits of control groups, from either version of their files."""

from __future__ import annotations

from pathlib import Path

from mmserve.runtime.memory.cgroup import limited_groups, memory_groups
from tests.fakes.processes.shortages import cgroup


def _left(path: Path) -> list[tuple[int, int]]:
    """(limit, left) of each group that the process is in."""
    return [(group.limit_nbytes, group.left_nbytes) for group in memory_groups(path / "fs", path / "own")]


def test_version_2_at_the_root_of_a_container(tmp_path: Path) -> None:
    cgroup(tmp_path / "fs", memory_max="1000\n", memory_current="700\n", memory_stat="anon 1\ninactive_file 200\n")
    (tmp_path / "own").write_text("0::/\n")
    assert _left(tmp_path) == [(1000, 500)]


def test_groups_without_a_limit_are_left_out(tmp_path: Path) -> None:
    cgroup(tmp_path / "fs/a/b", memory_max="max\n", memory_current="1\n", memory_stat="")
    cgroup(tmp_path / "fs/a", memory_max="50\n", memory_current="20\n", memory_stat="")
    (tmp_path / "own").write_text("0::/a/b\n")
    assert _left(tmp_path) == [(50, 30)]


def test_version_1(tmp_path: Path) -> None:
    cgroup(tmp_path / "fs/memory/job", memory_limit_in_bytes="90", memory_usage_in_bytes="40", memory_stat="")
    (tmp_path / "own").write_text("5:cpu:/x\n4:memory:/job\n")
    assert _left(tmp_path) == [(90, 50)]


def test_version_1_counts_the_page_cache_of_groups_below(tmp_path: Path) -> None:
    stat = "inactive_file 10\nactive_file 5\ntotal_inactive_file 30\ntotal_active_file 5\n"
    cgroup(tmp_path / "fs/memory", memory_limit_in_bytes="90", memory_usage_in_bytes="80", memory_stat=stat)
    (tmp_path / "own").write_text("4:memory:/\n")
    assert _left(tmp_path) == [(90, 40)]


def test_no_limit(tmp_path: Path) -> None:
    assert memory_groups(tmp_path, tmp_path / "none") == []


def test_version_1_without_a_limit(tmp_path: Path) -> None:
    cgroup(tmp_path / "fs/memory", memory_limit_in_bytes=f"{2**63 - 4096}", memory_usage_in_bytes="1", memory_stat="")
    (tmp_path / "own").write_text("4:memory:/\n")
    assert _left(tmp_path) == []


def test_the_page_cache_is_counted_only_when_little_is_left_without_it(tmp_path: Path) -> None:
    group = tmp_path / "fs"
    cgroup(group, memory_max="1000", memory_current="940", memory_stat="inactive_file 200\n")
    (tmp_path / "own").write_text("0::/\n")
    (limit,) = limited_groups(group, tmp_path / "own")
    assert [found.left_nbytes for found in (limit.read(lambda _: 50), limit.read(lambda _: 100)) if found] == [60, 260]


def test_a_limit_that_is_lifted_while_the_server_runs_is_none(tmp_path: Path) -> None:
    cgroup(tmp_path / "fs", memory_max="1000", memory_current="940", memory_stat="")
    (tmp_path / "own").write_text("0::/\n")
    (limit,) = limited_groups(tmp_path / "fs", tmp_path / "own")
    (tmp_path / "fs" / "memory.max").write_text("max\n")
    assert limit.read() is None
