"""The SQLite file with stored responses and their items. Blocking: ``store`` calls it in a thread.

A response is first stored with its input items, and found once it is finished. The least recently used ones make room
for new ones; those that nobody uses for the time to live are deleted. A response is found only by its owner.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_BUSY_TIMEOUT_S = 5.0
_PAGE_NBYTES = 4096
_MIN_PAGES = 1024
_OVERHEAD_NBYTES = 200
"""Of a response and of each item in the file, besides their text."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, previous TEXT, used_s REAL NOT NULL, nbytes INTEGER NOT NULL,
    text_nbytes INTEGER NOT NULL, body BLOB
);
CREATE INDEX IF NOT EXISTS responses_by_use ON responses (used_s, nbytes);
CREATE TABLE IF NOT EXISTS items (
    response TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE, place INTEGER NOT NULL, id TEXT NOT NULL,
    is_output INTEGER NOT NULL, json BLOB NOT NULL, PRIMARY KEY (response, place)
);
"""
_CHAIN = """
WITH RECURSIVE chain (id, previous, depth) AS (
    SELECT id, previous, 0 FROM responses WHERE id = :id AND owner = :owner AND body IS NOT NULL
    UNION ALL
    SELECT r.id, r.previous, depth + 1 FROM chain JOIN responses r ON r.id = chain.previous
    WHERE r.owner = :owner AND depth < :most
)
"""


@dataclass(frozen=True)
class StoredItem:
    """``json``: the whole item, with its id."""

    id: str
    json: bytes


@dataclass(frozen=True)
class ChainSize:
    """A response and those that it continues. ``text_nbytes``: of ``nbytes``, without images in data: URLs."""

    nbytes: int
    text_nbytes: int


class ResponseDatabase:
    """``limit_nbytes``: of all that is stored. ``ttl_s``: time to live after the last use. Raises sqlite3.Error.

    Used by one thread at a time. ``now``: a clock that all processes of the machine share.
    """

    def __init__(self, path: Path, limit_nbytes: int, ttl_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self._limit_nbytes = limit_nbytes
        self._ttl_s = ttl_s
        self._now = now
        self._connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        # The file is deleted with the server, so it need not survive the machine.
        self._connection.executescript(
            f"""PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA foreign_keys = ON;
            PRAGMA journal_size_limit = {16 * 1024 * _PAGE_NBYTES};
            PRAGMA max_page_count = {_MIN_PAGES + 3 * limit_nbytes // (2 * _PAGE_NBYTES)};{_SCHEMA}"""
        )

    def close(self) -> None:
        self._connection.close()

    def begin(self, owner: str, id: str, previous: str | None, items: Sequence[StoredItem], text_nbytes: int) -> bool:
        """Store the input of a response. False if it is larger than all that may be stored."""
        nbytes = _size_of(items)
        with self._transaction() as connection:
            if not self._make_room(nbytes):
                return False
            row = (id, owner, previous, self._now(), nbytes, text_nbytes)
            connection.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, NULL)", row)
            self._add_items(id, 0, items, is_output=False)
        return True

    def finish(self, id: str, body: bytes, items: Sequence[StoredItem]) -> bool:
        """Add the response and its output. False if its input is gone, or if it is larger than what may be stored."""
        nbytes = len(body) + _size_of(items)
        with self._transaction() as connection:
            connection.execute("UPDATE responses SET used_s = ? WHERE id = ?", (self._now(), id))
            row = connection.execute("SELECT COUNT(*) FROM items WHERE response = ?", (id,)).fetchone()
            if not row[0] or not self._make_room(nbytes, keep=id):
                connection.execute("DELETE FROM responses WHERE id = ?", (id,))
                return False
            connection.execute(
                "UPDATE responses SET nbytes = nbytes + ?, text_nbytes = text_nbytes + ?, body = ? WHERE id = ?",
                (nbytes, nbytes, body, id),
            )
            self._add_items(id, row[0], items, is_output=True)
        return True

    def forget(self, id: str) -> None:
        """Delete a response that was not finished."""
        self._connection.execute("DELETE FROM responses WHERE id = ? AND body IS NULL", (id,))

    def delete(self, owner: str, id: str) -> bool:
        """False if there is no such response."""
        found = self._connection.execute(
            "DELETE FROM responses WHERE id = ? AND owner = ? AND body IS NOT NULL", (id, owner)
        )
        return found.rowcount > 0

    def size(self, owner: str, id: str) -> int | None:
        """Bytes of a response with its items; None if there is none."""
        self._expire()
        row = self._connection.execute(
            "SELECT nbytes FROM responses WHERE id = ? AND owner = ? AND body IS NOT NULL", (id, owner)
        ).fetchone()
        return None if row is None else int(row[0])

    def body(self, owner: str, id: str) -> bytes | None:
        """The response as JSON. Counts as a use."""
        rows = self._connection.execute(
            "UPDATE responses SET used_s = ? WHERE id = ? AND owner = ? AND body IS NOT NULL RETURNING body",
            (self._now(), id, owner),
        ).fetchall()  # the change is committed with the last row
        return bytes(rows[0][0]) if rows else None

    def input_items(self, owner: str, id: str) -> list[bytes]:
        """JSON of the items of the request itself, in order."""
        rows = self._connection.execute(
            "SELECT json FROM items JOIN responses r ON r.id = response WHERE r.id = ? AND owner = ? AND NOT is_output "
            "ORDER BY place",
            (id, owner),
        )
        return [bytes(json) for (json,) in rows]

    def chain_size(self, owner: str, id: str, most: int) -> ChainSize | None:
        """None if the response or one that it continues is not stored. ``most``: responses that are looked at."""
        self._expire()
        with self._transaction() as connection:
            rows = connection.execute(
                _CHAIN + "SELECT r.nbytes, r.text_nbytes, r.previous, r.id FROM chain JOIN responses r USING (id) "
                "ORDER BY depth",
                {"owner": owner, "id": id, "most": most},
            ).fetchall()
            if not rows or (rows[-1][2] is not None and len(rows) <= most):
                return None
            used = [(self._now(), row[3]) for row in rows]
            connection.executemany("UPDATE responses SET used_s = ? WHERE id = ?", used)
        return ChainSize(sum(row[0] for row in rows), sum(row[1] for row in rows))

    def chain_items(self, owner: str, id: str, most: int) -> list[bytes]:
        """JSON of all items of the chain: inputs and outputs, the oldest first."""
        rows = self._connection.execute(
            _CHAIN + "SELECT json FROM chain JOIN items ON response = chain.id ORDER BY depth DESC, place",
            {"owner": owner, "id": id, "most": most},
        )
        return [bytes(json) for (json,) in rows]

    def _add_items(self, id: str, first: int, items: Sequence[StoredItem], *, is_output: bool) -> None:
        rows = ((id, place, item.id, is_output, item.json) for place, item in enumerate(items, first))
        self._connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", rows)

    def _make_room(self, nbytes: int, keep: str = "") -> bool:
        """Delete what has expired, then the least recently used responses but ``keep``. False if that cannot do."""
        self._expire()
        (used_nbytes,) = self._connection.execute("SELECT COALESCE(SUM(nbytes), 0) FROM responses").fetchone()
        if nbytes > self._limit_nbytes:
            return False
        while used_nbytes + nbytes > self._limit_nbytes:
            oldest = self._connection.execute(
                "SELECT id, nbytes FROM responses WHERE id != ? ORDER BY used_s LIMIT 1", (keep,)
            ).fetchone()
            if oldest is None:
                return False
            self._connection.execute("DELETE FROM responses WHERE id = ?", (oldest[0],))
            used_nbytes -= oldest[1]
        return True

    def _expire(self) -> None:
        self._connection.execute("DELETE FROM responses WHERE used_s <= ?", (self._now() - self._ttl_s,))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
        except BaseException:
            if self._connection.in_transaction:  # a full disk has rolled it back already
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def _size_of(items: Sequence[StoredItem]) -> int:
    return _OVERHEAD_NBYTES * (1 + len(items)) + sum(len(item.json) for item in items)
