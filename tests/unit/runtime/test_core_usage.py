"""Who computes says so, and all that map the file see it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmserve.runtime.core_usage import BusyCores


def test_what_one_takes_others_see(tmp_path: Path) -> None:
    rank, tower = (BusyCores(tmp_path / "taken-cores", 2) for _ in range(2))
    with tower.taken(1, 4):
        assert list(rank.numbers) == [0, 4]
    assert list(rank.numbers) == [0, 0]


def test_a_failure_gives_them_back(tmp_path: Path) -> None:
    cores = BusyCores(tmp_path / "taken-cores", 1)
    with pytest.raises(RuntimeError), cores.taken(0, 2):
        raise RuntimeError("out of memory")
    assert list(cores.numbers) == [0]


def test_what_a_killed_one_left_is_gone_with_its_successor(tmp_path: Path) -> None:
    rank, killed = (BusyCores(tmp_path / "taken-cores", 1) for _ in range(2))
    killed.taken(0, 2).__enter__()
    BusyCores(tmp_path / "taken-cores", 1).none(0)
    assert list(rank.numbers) == [0]
