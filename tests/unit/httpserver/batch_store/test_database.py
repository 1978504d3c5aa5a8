"""Files and batches in their database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmserve.httpserver.batch_store.database import BatchDatabase
from mmserve.httpserver.batch_store.records import StoredBatch, StoredFile, output_ids


@pytest.fixture
def database(tmp_path: Path) -> Iterator[BatchDatabase]:
    database = BatchDatabase(tmp_path)
    yield database
    database.close()


def _add_file(database: BatchDatabase, id: str, owner: str = "a", expires_at: int | None = None) -> None:
    database.path_of(id).write_bytes(b"x" * 5000)
    file = StoredFile(id=id, bytes=5000, created_at=1, filename="in.jsonl", purpose="batch", expires_at=expires_at)
    database.add_file(owner, file)


def _batch(id: str, input_id: str) -> StoredBatch:
    return StoredBatch(id=id, endpoint="/v1/completions", input_file_id=input_id, created_at=1, expires_at=2)


def _ids(database: BatchDatabase, **query: object) -> list[str] | None:
    given = {"after": None, "limit": 10, "newest_first": True, "purpose": None, **query}
    found = database.files("a", 0, **given)  # type: ignore[arg-type]
    return None if found is None else [file.id for file in found]


def test_files_are_listed_a_page_at_a_time(database: BatchDatabase) -> None:
    for number in range(4):
        _add_file(database, f"f{number}")
    _add_file(database, "foreign", owner="b")
    assert _ids(database, limit=2) == ["f3", "f2"]
    assert _ids(database, limit=2, after="f2") == ["f1", "f0"]
    assert _ids(database, newest_first=False, after="f1") == ["f2", "f3"]
    assert _ids(database, purpose="batch_output") == []
    assert _ids(database, after="foreign") is None


def test_a_file_is_found_and_deleted_by_its_owner_alone(database: BatchDatabase) -> None:
    _add_file(database, "f")
    assert database.file("b", "f", 0) is None
    assert database.delete_file("b", "f") is None
    assert database.path_of("f").exists()
    found = database.file("a", "f", 0)
    assert found is not None
    assert found.filename == "in.jsonl"
    assert database.delete_file("a", "f")
    assert not database.path_of("f").exists()
    assert database.file("a", "f", 0) is None


def test_expired_files_are_gone_with_their_content(database: BatchDatabase) -> None:
    _add_file(database, "f", expires_at=100)
    assert database.file("a", "f", 99) is not None
    assert database.file("a", "f", 100) is None
    assert database.used_nbytes() == 0


def test_the_input_of_a_batch_stays_until_it_has_ended(database: BatchDatabase) -> None:
    _add_file(database, "f", expires_at=100)
    assert database.add_batch("a", _batch("b1", "f"))
    assert database.delete_file("a", "f") is False
    assert database.file("a", "f", 100) is not None
    database.change_batch("b1", lambda batch: setattr(batch, "status", "completed"))
    assert database.file("a", "f", 100) is None


def test_a_batch_needs_a_file_of_its_owner(database: BatchDatabase) -> None:
    _add_file(database, "f", owner="b")
    assert not database.add_batch("a", _batch("b1", "f"))
    assert not database.add_batch("a", _batch("b1", "../f"))


def test_batches_are_run_in_their_order_and_end_once(database: BatchDatabase) -> None:
    _add_file(database, "f")
    for id in ("b1", "b2"):
        assert database.add_batch("a", _batch(id, "f"))
    found = database.next_unended()
    assert found is not None
    assert (found[0], found[1].id) == ("a", "b1")
    database.change_batch("b1", lambda batch: setattr(batch, "status", "cancelled"))
    assert database.change_batch("b1", lambda batch: setattr(batch, "status", "completed")).status == "cancelled"
    found = database.next_unended()
    assert found is not None
    assert found[1].id == "b2"
    assert [batch.id for batch in database.batches("a", after=None, limit=9) or ()] == ["b2", "b1"]
    assert database.batches("a", after="b2", limit=9) == [database.batch("a", "b1")]
    assert database.batch("b", "b1") is None


def test_what_is_stored_is_there_after_a_restart(database: BatchDatabase, tmp_path: Path) -> None:
    _add_file(database, "f")
    database.add_batch("a", _batch("b1", "f"))
    database.close()
    again = BatchDatabase(tmp_path)
    assert again.batch("a", "b1") == _batch("b1", "f")
    assert again.used_nbytes() == 5000
    again.close()


def test_uploads_that_did_not_end_are_deleted_a_day_later(database: BatchDatabase) -> None:
    _add_file(database, "f")
    database.add_batch("a", _batch("batch_1", "f"))
    names = ("left", *output_ids("batch_1"))
    for name in (*names, "new"):
        database.path_of(name).write_bytes(b"x")
    for name in ("f", *names):
        os.utime(database.path_of(name), (0, 0))
    now_s = int(database.path_of("new").stat().st_mtime)
    database.delete_orphans(now_s)
    assert sorted(path.name for path in database.path_of("f").parent.iterdir()) == sorted(["f", "new", *names[1:]])
