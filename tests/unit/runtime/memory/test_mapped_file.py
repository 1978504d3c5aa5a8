"""Mapped files: shared, as long as asked for, and never emptied."""

from __future__ import annotations

from pathlib import Path

from mmserve.runtime.memory.mapped_file import map_file


def test_a_new_file_has_zeros_and_room_on_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with map_file(path, 100_000) as mapped:
        assert mapped[:] == bytes(100_000)
    assert path.stat().st_blocks * 512 >= 100_000, "a page without room would end the process at its first use"


def test_what_one_writes_the_other_and_the_successor_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with map_file(path, 8) as one, map_file(path, 8) as other:
        one[2] = 7
        assert other[2] == 7
    with map_file(path, 16) as successor:
        assert successor[:] == bytes([0, 0, 7, *bytes(13)])
