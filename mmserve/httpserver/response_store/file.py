"""The SQLite file with stored responses: its tables, its transactions, and the room in it. Blocking.

The least recently used responses make room for new ones; those that nobody uses for the time to live are deleted. A
response that a worker still makes in the background is neither.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_BUSY_TIMEOUT_S = 5.0
_PAGE_NBYTES = 4096
_MIN_PAGES = 1024
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, previous TEXT, used_s REAL NOT NULL, nbytes INTEGER NOT NULL,
    text_nbytes INTEGER NOT NULL, record_nbytes INTEGER NOT NULL, status TEXT NOT NULL, body BLOB, runner TEXT,
    attempt TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS responses_by_use ON responses (used_s, nbytes, record_nbytes);
CREATE INDEX IF NOT EXISTS responses_by_runner ON responses (runner) WHERE runner IS NOT NULL;
CREATE TABLE IF NOT EXISTS items (
    response TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE, place INTEGER NOT NULL, id TEXT NOT NULL,
    is_output INTEGER NOT NULL, json BLOB NOT NULL, PRIMARY KEY (response, place)
);
CREATE INDEX IF NOT EXISTS items_by_id ON items (id);
CREATE TABLE IF NOT EXISTS records (
    response TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE, place INTEGER NOT NULL, lines BLOB NOT NULL,
    PRIMARY KEY (response, place)
) WITHOUT ROWID;
"""
"""``status``: empty until the response is found. ``runner``: the worker that makes it in the background, until it ends.
``attempt``: the request that makes it. ``records``: what its stream was made of, a line for each delta; ``place``:
number of the first of them."""


class StoreFile:
    """``limit_nbytes``: of all that is stored. ``ttl_s``: time to live after the last use. Raises sqlite3.Error.

    Used by one thread at a time. ``now``: a clock that all processes of the machine share.
    """

    def __init__(self, path: Path, limit_nbytes: int, ttl_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._limit_nbytes = limit_nbytes
        self._ttl_s = ttl_s
        self.now = now
        self.path = path
        self.connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        # The file is deleted with the server, so it need not survive the machine.
        self.connection.executescript(
            f"""PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA foreign_keys = ON;
            PRAGMA journal_size_limit = {16 * 1024 * _PAGE_NBYTES};
            PRAGMA max_page_count = {_MIN_PAGES + 3 * limit_nbytes // (2 * _PAGE_NBYTES)};{_SCHEMA}"""
        )

    def close(self) -> None:
        self.connection.close()

    def make_room(self, nbytes: int, keep: str = "") -> bool:
        """Delete what has expired, then the least recently used responses but ``keep``. False if that cannot do."""
        self.expire()
        (used_nbytes,) = self.connection.execute(
            "SELECT COALESCE(SUM(nbytes + record_nbytes), 0) FROM responses"
        ).fetchone()
        if nbytes > self._limit_nbytes:
            return False
        while used_nbytes + nbytes > self._limit_nbytes:
            oldest = self.connection.execute(
                "SELECT id, nbytes + record_nbytes FROM responses WHERE id != ? AND runner IS NULL "
                "ORDER BY used_s LIMIT 1",
                (keep,),
            ).fetchone()
            if oldest is None:
                return False
            self.connection.execute("DELETE FROM responses WHERE id = ?", (oldest[0],))
            used_nbytes -= oldest[1]
        return True

    def expire(self) -> None:
        self.connection.execute(
            "DELETE FROM responses WHERE used_s <= ? AND runner IS NULL", (self.now() - self._ttl_s,)
        )

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield self.connection
        except BaseException:  # a cancelled or interrupted transaction must be rolled back too; it is raised again
            if self.connection.in_transaction:  # a full disk has rolled it back already
                self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")
