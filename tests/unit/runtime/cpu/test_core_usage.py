"""Counts of busy cores are seen by every process that maps the file, and are reset after use."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmserve.runtime.cpu.core_usage import BusyCores


def test_a_count_is_seen_by_other_processes_while_computing(tmp_path: Path) -> None:
    rank, visual_server = (BusyCores(tmp_path / "cores", 2) for _ in range(2))
    with visual_server.computing(1, 4):
        assert list(rank.counts) == [0, 4]
    assert list(rank.counts) == [0, 0]


def test_an_error_resets_the_count(tmp_path: Path) -> None:
    cores = BusyCores(tmp_path / "cores", 1)
    with pytest.raises(RuntimeError), cores.computing(0, 2):
        raise RuntimeError("out of memory")
    assert list(cores.counts) == [0]


def test_a_restarted_process_clears_the_count_of_its_killed_predecessor(tmp_path: Path) -> None:
    rank, killed = (BusyCores(tmp_path / "cores", 1) for _ in range(2))
    killed.computing(0, 2).__enter__()
    BusyCores(tmp_path / "cores", 1).clear(0)
    assert list(rank.counts) == [0]
