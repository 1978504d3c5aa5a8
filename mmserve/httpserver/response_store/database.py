"""Stored responses and their items. Blocking: ``store`` calls it in a thread.

A response is first stored with its input items, and found once it is finished. A response is found only by its owner.
A front that has lost an answer asks for it again under the same id, perhaps while the first attempt still runs here: so
an attempt changes and deletes only what it has stored itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from sqlite3 import Connection

from mmserve.httpserver.response_store.file import StoreFile

CONTINUED = ("completed", "incomplete")
"""What a response may be for a request to continue it."""
RECORD_ROW_NBYTES = 64 * 1024
_OVERHEAD_NBYTES = 200
"""Of a response and of each item in the file, besides their text."""
_CHAIN = """
WITH RECURSIVE chain (id, previous, depth) AS (
    SELECT id, previous, 0 FROM responses WHERE id = :id AND owner = :owner AND body IS NOT NULL
    UNION ALL
    SELECT r.id, r.previous, depth + 1 FROM chain JOIN responses r ON r.id = chain.previous
    WHERE r.owner = :owner AND depth < :most
)
"""
_ITEM = """
SELECT {} FROM items JOIN responses r ON r.id = response WHERE items.id = ? AND owner = ? AND body IS NOT NULL
ORDER BY used_s DESC LIMIT 1
"""


@dataclass(frozen=True)
class StoredItem:
    """``json``: the whole item, with its id."""

    id: str
    json: bytes


@dataclass(frozen=True)
class StoredOutput:
    """A response that has ended: its JSON and its items. ``record``: a line for each delta, if it was streamed."""

    status: str
    body: bytes
    items: Sequence[StoredItem] = ()
    record: bytes | None = None


@dataclass(frozen=True)
class ChainSize:
    """A response and those that it continues. ``text_nbytes``: of ``nbytes``, without images in data: URLs.

    ``status``: of the response itself.
    """

    nbytes: int
    text_nbytes: int
    status: str = "completed"


class ResponseDatabase:
    """Raises sqlite3.Error. Used by one thread at a time."""

    def __init__(self, file: StoreFile) -> None:
        self._file = file
        self._connection = file.connection

    def begin(
        self,
        owner: str,
        id: str,
        attempt: str,
        previous: str | None,
        items: Sequence[StoredItem],
        text_nbytes: int,
        body: bytes | None = None,
        runner: str | None = None,
    ) -> bool:
        """Store the input of a response, in place of an attempt at it that has not finished. False if it is larger than
        all that may be stored.

        With ``body`` and ``runner`` it is found at once: that worker makes it in the background.
        """
        nbytes = size_of(items) + len(body or b"")
        with self._file.transaction() as connection:
            connection.execute("DELETE FROM responses WHERE id = ? AND owner = ? AND body IS NULL", (id, owner))
            if not self._file.make_room(nbytes):
                return False
            status = "" if runner is None else "queued"
            row = (id, owner, previous, self._file.now(), nbytes, text_nbytes, status, body, runner, attempt)
            connection.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?, ?, ?)", row)
            add_items(connection, id, 0, items, is_output=False)
        return True

    def finish(self, id: str, attempt: str, output: StoredOutput) -> bool:
        """Add the response and its output. False if its input is gone, or if it is larger than what may be stored."""
        nbytes = len(output.body) + size_of(output.items)
        with self._file.transaction() as connection:
            found = connection.execute(
                "UPDATE responses SET used_s = ? WHERE id = ? AND attempt = ?", (self._file.now(), id, attempt)
            )
            if not found.rowcount:
                return False
            row = connection.execute("SELECT COUNT(*) FROM items WHERE response = ?", (id,)).fetchone()
            if not row[0] or not self._file.make_room(nbytes + len(output.record or b""), keep=id):
                connection.execute("DELETE FROM responses WHERE id = ?", (id,))
                return False
            connection.execute(
                "UPDATE responses SET nbytes = nbytes + ?, text_nbytes = text_nbytes + ?, body = ?, status = ? "
                "WHERE id = ?",
                (nbytes, nbytes, output.body, output.status, id),
            )
            add_items(connection, id, row[0], output.items, is_output=True)
            if output.record is not None:
                write_record(connection, id, output.record)
        return True

    def forget(self, id: str, attempt: str) -> None:
        """Delete a response that was not finished."""
        self._connection.execute(
            "DELETE FROM responses WHERE id = ? AND attempt = ? AND (body IS NULL OR runner IS NOT NULL)", (id, attempt)
        )

    def delete(self, owner: str, id: str) -> str | None:
        """The runner of the response, empty if there is none; None if there is no such response."""
        rows = self._connection.execute(
            "DELETE FROM responses WHERE id = ? AND owner = ? AND body IS NOT NULL RETURNING runner", (id, owner)
        ).fetchall()  # the change is committed with the last row
        return (rows[0][0] or "") if rows else None

    def size(self, owner: str, id: str) -> int | None:
        """Bytes of a response with its items; None if there is none."""
        self._file.expire()
        row = self._connection.execute(
            "SELECT nbytes FROM responses WHERE id = ? AND owner = ? AND body IS NOT NULL", (id, owner)
        ).fetchone()
        return None if row is None else int(row[0])

    def body(self, owner: str, id: str) -> bytes | None:
        """The response as JSON. Counts as a use."""
        rows = self._connection.execute(
            "UPDATE responses SET used_s = ? WHERE id = ? AND owner = ? AND body IS NOT NULL RETURNING body",
            (self._file.now(), id, owner),
        ).fetchall()
        return bytes(rows[0][0]) if rows else None

    def input_items(self, owner: str, id: str) -> list[bytes]:
        """JSON of the items of the request itself, in order."""
        rows = self._connection.execute(
            "SELECT json FROM items JOIN responses r ON r.id = response WHERE r.id = ? AND owner = ? AND NOT is_output "
            "ORDER BY place",
            (id, owner),
        )
        return [bytes(json) for (json,) in rows]

    def item_size(self, owner: str, id: str) -> int:
        """Bytes of ``item``, 0 if there is none."""
        row = self._connection.execute(_ITEM.format("LENGTH(json)"), (id, owner)).fetchone()
        return int(row[0]) if row else 0

    def item(self, owner: str, id: str) -> bytes | None:
        """JSON of an item of any response that is found: of the one used last, if several have it."""
        row = self._connection.execute(_ITEM.format("json"), (id, owner)).fetchone()
        return None if row is None else bytes(row[0])

    def chain_size(self, owner: str, id: str, most: int) -> ChainSize | None:
        """None if the response or one that it continues is not stored. ``most``: responses that are looked at."""
        self._file.expire()
        with self._file.transaction() as connection:
            rows = connection.execute(
                _CHAIN + "SELECT r.nbytes, r.text_nbytes, r.previous, r.id, r.status FROM chain "
                "JOIN responses r USING (id) ORDER BY depth",
                {"owner": owner, "id": id, "most": most},
            ).fetchall()
            if not rows or (rows[-1][2] is not None and len(rows) <= most):
                return None
            used = [(self._file.now(), row[3]) for row in rows]
            connection.executemany("UPDATE responses SET used_s = ? WHERE id = ?", used)
        return ChainSize(sum(row[0] for row in rows), sum(row[1] for row in rows), rows[0][4])

    def chain_items(self, owner: str, id: str, most: int) -> list[bytes]:
        """JSON of all items of the chain: inputs and outputs, the oldest first."""
        rows = self._connection.execute(
            _CHAIN + "SELECT json FROM chain JOIN items ON response = chain.id ORDER BY depth DESC, place",
            {"owner": owner, "id": id, "most": most},
        )
        return [bytes(json) for (json,) in rows]


def add_items(connection: Connection, id: str, first: int, items: Sequence[StoredItem], *, is_output: bool) -> None:
    """Within a transaction. ``first``: number of items of the response before these."""
    rows = ((id, place, item.id, is_output, item.json) for place, item in enumerate(items, first))
    connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", rows)


def write_record(connection: Connection, id: str, record: bytes) -> None:
    """Within a transaction: store all lines of a record in rows of moderate size, in place of those that are there. At
    least one row, so that the response is known to have one."""
    lines, rows, start = record.splitlines(keepends=True), [], 0
    while start < len(lines):
        end, nbytes = start, 0
        while end < len(lines) and nbytes < RECORD_ROW_NBYTES:
            nbytes += len(lines[end])
            end += 1
        rows.append((id, start, b"".join(lines[start:end])))
        start = end
    connection.execute("DELETE FROM records WHERE response = ?", (id,))
    connection.executemany("INSERT INTO records VALUES (?, ?, ?)", rows or [(id, 0, b"")])
    connection.execute("UPDATE responses SET record_nbytes = ? WHERE id = ?", (len(record), id))


def size_of(items: Sequence[StoredItem]) -> int:
    """Bytes of a response with these items in the file."""
    return _OVERHEAD_NBYTES * (1 + len(items)) + sum(len(item.json) for item in items)
