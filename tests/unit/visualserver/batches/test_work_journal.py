"""The journal says what a killed server worked on."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmserve.visualserver.batches.work_journal import WorkJournal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work"


def test_the_first_server_has_no_suspects(path: Path) -> None:
    journal = WorkJournal(path, 4)
    assert (journal.suspects, journal.died_decoding, journal.num_deaths(0)) == ({}, False, 0)


@pytest.mark.parametrize("decoding", [False, True])
def test_images_in_work_at_a_death_are_suspects(path: Path, decoding: bool) -> None:
    """The second journal opens the file while the first is within its block, as after SIGKILL."""
    journal = WorkJournal(path, 4)
    with journal.working([1]):
        pass
    with journal.working([0, 7], decoding=decoding):
        successor = WorkJournal(path, 4)
    assert successor.suspects == {0: 1, 7: 1}
    assert successor.died_decoding == decoding


def test_deaths_are_counted_until_the_image_is_done_with(path: Path) -> None:
    for count in range(1, 4):
        with WorkJournal(path, 4).working([5, 5]):
            journal = WorkJournal(path, 4)
        assert journal.num_deaths(5) == count
    journal.clear([4])
    assert WorkJournal(path, 4).suspects == {5: 3}
    journal.clear([5])
    assert journal.num_deaths(5) == 0
    assert WorkJournal(path, 4).suspects == {}


def test_an_error_leaves_no_suspect_unless_it_ends_the_process(path: Path) -> None:
    journal = WorkJournal(path, 4)
    for _ in range(9):
        with pytest.raises(ValueError, match="x"), journal.working([1, 2]):
            raise ValueError("x")
    assert WorkJournal(path, 4).suspects == {}
    with pytest.raises(ValueError, match="x"), journal.working([3], ends_process=lambda error: True):
        raise ValueError("x")
    assert WorkJournal(path, 4).suspects == {3: 1}


def test_the_newest_suspects_are_kept(path: Path) -> None:
    for item_id in range(300):
        with WorkJournal(path, 1).working([item_id]):
            pass
        with WorkJournal(path, 1).working([item_id]):
            journal = WorkJournal(path, 1)
    assert len(journal.suspects) == 257
    assert list(WorkJournal(path, 1).suspects) == [*range(44, 300)]
