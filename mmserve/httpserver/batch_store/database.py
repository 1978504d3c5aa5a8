"""The SQLite file of files and batches. Blocking: ``store`` calls it in a thread.

A file or batch is found only by its owner, the name of an API key. Contents are files named by their id.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from mmserve.httpserver.batch_store.records import UNENDED, StoredBatch, StoredFile, output_ids

T = TypeVar("T")
_BUSY_TIMEOUT_S = 10.0
_MIN_FILE_NBYTES = 4096
"""What the smallest file takes."""
_KEPT_BATCHES = 10_000
"""When there are more, the oldest that has ended is forgotten."""
_ORPHAN_AGE_S = 86400
_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, purpose TEXT NOT NULL,
    nbytes INTEGER NOT NULL, expires_at INTEGER, json BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS batches (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, input TEXT NOT NULL,
    has_ended INTEGER NOT NULL, json BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS unended ON batches (number) WHERE NOT has_ended;
"""
_DECODE_FILE = msgspec.json.Decoder(StoredFile).decode
_DECODE_BATCH = msgspec.json.Decoder(StoredBatch).decode


class BatchDatabase:
    """``directory``: made if it is not there. Raises sqlite3.Error and OSError. Used by one thread at a time."""

    def __init__(self, directory: Path) -> None:
        self._contents = directory / "files"
        self._contents.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._connection = sqlite3.connect(
            directory / "batches.sqlite", timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        self._connection.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; {_SCHEMA}")

    def close(self) -> None:
        self._connection.close()

    def path_of(self, id: str) -> Path:
        """Of a file's content. ``id`` must be one that this server has made."""
        return self._contents / id

    # files

    def used_nbytes(self) -> int:
        """Of all contents, those of batches that run included."""
        return sum(max(_MIN_FILE_NBYTES, path.stat().st_size) for path in self._contents.iterdir())

    def add_file(self, owner: str, file: StoredFile) -> None:
        """A file whose content is there. One that is added already stays as it is."""
        row = (file.id, owner, file.purpose, file.bytes, file.expires_at, msgspec.json.encode(file))
        self._connection.execute(
            "INSERT OR IGNORE INTO files (id, owner, purpose, nbytes, expires_at, json) VALUES (?, ?, ?, ?, ?, ?)", row
        )

    def file(self, owner: str, id: str, now_s: int) -> StoredFile | None:
        self._delete_expired(now_s)
        row = self._connection.execute("SELECT json FROM files WHERE id = ? AND owner = ?", (id, owner)).fetchone()
        return None if row is None else _DECODE_FILE(row[0])

    def files(
        self, owner: str, now_s: int, *, after: str | None, limit: int, newest_first: bool, purpose: str | None
    ) -> list[StoredFile] | None:
        """None if there is no file ``after``."""
        self._delete_expired(now_s)
        rows = self._page("files", owner, after, limit, newest_first, purpose)
        return None if rows is None else [_DECODE_FILE(row) for row in rows]

    def delete_file(self, owner: str, id: str) -> bool | None:
        """None if there is no such file, False if a batch still reads it."""
        with self._transaction() as connection:
            if connection.execute("SELECT 1 FROM batches WHERE input = ? AND NOT has_ended", (id,)).fetchone():
                return False
            found = connection.execute("DELETE FROM files WHERE id = ? AND owner = ?", (id, owner)).rowcount
        if not found:
            return None
        self.path_of(id).unlink(missing_ok=True)
        return True

    def _delete_expired(self, now_s: int) -> None:
        expired = (
            "SELECT id FROM files WHERE expires_at <= ? AND id NOT IN (SELECT input FROM batches WHERE NOT has_ended)"
        )
        for (id,) in self._connection.execute(expired, (now_s,)).fetchall():
            self._connection.execute("DELETE FROM files WHERE id = ?", (id,))
            self.path_of(id).unlink(missing_ok=True)

    def delete_orphans(self, now_s: int) -> None:
        """Delete contents of uploads that did not end: those older than a day that are no file's and no batch's."""
        known = {id for (id,) in self._connection.execute("SELECT id FROM files")}
        for (json,) in self._connection.execute("SELECT json FROM batches WHERE NOT has_ended"):
            known |= set(output_ids(_DECODE_BATCH(json).id))
        for path in self._contents.iterdir():
            if path.name not in known and path.stat().st_mtime < now_s - _ORPHAN_AGE_S:
                path.unlink(missing_ok=True)

    # batches

    def add_batch(self, owner: str, batch: StoredBatch) -> bool:
        """False if its input is no file of the owner's."""
        with self._transaction() as connection:
            query = "SELECT 1 FROM files WHERE id = ? AND owner = ? AND purpose = 'batch'"
            if connection.execute(query, (batch.input_file_id, owner)).fetchone() is None:
                return False
            connection.execute(
                "INSERT INTO batches (id, owner, input, has_ended, json) VALUES (?, ?, ?, 0, ?)",
                (batch.id, owner, batch.input_file_id, msgspec.json.encode(batch)),
            )
            connection.execute(
                "DELETE FROM batches WHERE number IN (SELECT number FROM batches WHERE has_ended ORDER BY number "
                "LIMIT MAX(0, (SELECT COUNT(*) FROM batches) - ?))",
                (_KEPT_BATCHES,),
            )
        return True

    def batch(self, owner: str, id: str) -> StoredBatch | None:
        row = self._connection.execute("SELECT json FROM batches WHERE id = ? AND owner = ?", (id, owner)).fetchone()
        return None if row is None else _DECODE_BATCH(row[0])

    def batches(self, owner: str, *, after: str | None, limit: int) -> list[StoredBatch] | None:
        """The newest first. None if there is no batch ``after``."""
        rows = self._page("batches", owner, after, limit, newest_first=True)
        return None if rows is None else [_DECODE_BATCH(row) for row in rows]

    def next_unended(self) -> tuple[str, StoredBatch] | None:
        """The owner and the oldest batch that has not ended."""
        row = self._connection.execute(
            "SELECT owner, json FROM batches WHERE NOT has_ended ORDER BY number LIMIT 1"
        ).fetchone()
        return None if row is None else (row[0], _DECODE_BATCH(row[1]))

    def change_batch(self, id: str, change: Callable[[StoredBatch], object]) -> StoredBatch:
        """Change a batch that has not ended; one that has ended stays as it is. Returns what is stored then."""
        with self._transaction() as connection:
            (json,) = connection.execute("SELECT json FROM batches WHERE id = ?", (id,)).fetchone()
            batch = _DECODE_BATCH(json)
            if batch.status in UNENDED:
                change(batch)
                has_ended = batch.status not in UNENDED
                row = (has_ended, msgspec.json.encode(batch), id)
                connection.execute("UPDATE batches SET has_ended = ?, json = ? WHERE id = ?", row)
        return batch

    def _page(
        self, table: str, owner: str, after: str | None, limit: int, newest_first: bool, purpose: str | None = None
    ) -> list[bytes] | None:
        place = 0 if not newest_first else 1 << 62
        if after is not None:
            query = f"SELECT number FROM {table} WHERE id = ? AND owner = ?"
            row = self._connection.execute(query, (after, owner)).fetchone()
            if row is None:
                return None
            place = row[0]
        beyond, order = ("<", "DESC") if newest_first else (">", "ASC")
        of_purpose, values = ("", ()) if purpose is None else ("AND purpose = ?", (purpose,))
        query = f"SELECT json FROM {table} WHERE owner = ? AND number {beyond} ? {of_purpose} ORDER BY number {order}"
        return [json for (json,) in self._connection.execute(f"{query} LIMIT ?", (owner, place, *values, limit))]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
        except BaseException:  # an interrupted transaction must be rolled back too; it is raised again
            if self._connection.in_transaction:  # a full disk has rolled it back already
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
