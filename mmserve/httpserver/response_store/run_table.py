"""Responses that are made in the background, and the records of all that can be replayed. Blocking.

The worker that makes a response appends to its record, and ends it. Any worker may end it earlier; whoever is first
does, and the others learn that the response is no longer theirs to change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mmserve.httpserver.response_store.database import (
    RECORD_ROW_NBYTES,
    StoredOutput,
    add_items,
    size_of,
    write_record,
)
from mmserve.httpserver.response_store.file import StoreFile

_ROW_NBYTES = 100
"""Of a row of a record in the file, besides its lines."""
_PAGE_NBYTES = RECORD_ROW_NBYTES
_STEP_NBYTES = 64 * 1024
"""Room for a record is made in steps of this size: to count what is stored takes longer than to store a line."""
MakeOutput = Callable[[bytes, bytes], StoredOutput]
"""make_output(body, record): how a response ends of which there is this much."""


@dataclass(frozen=True)
class Page:
    """The state of a response, and the next lines of its record. ``runner``: empty if it has ended.

    ``more``: further lines are stored already.
    """

    body: bytes
    status: str
    runner: str
    lines: list[bytes]
    more: bool


class RunTable:
    """Raises sqlite3.Error. Used by one thread at a time."""

    def __init__(self, file: StoreFile) -> None:
        self._file = file
        self._connection = file.connection

    def start(self, id: str, runner: str, body: bytes) -> bool:
        """A queued response is in progress. False if it is not this runner's any more."""
        found = self._connection.execute(
            "UPDATE responses SET status = 'in_progress', body = ?, used_s = ? WHERE id = ? AND runner = ?",
            (body, self._file.now(), id, runner),
        )
        return found.rowcount > 0

    def append(self, id: str, runner: str, place: int, lines: bytes) -> bool:
        """Add lines to the record; ``place``: number of the first. False if it is not this runner's response any more,
        or if there is no room."""
        nbytes = len(lines) + _ROW_NBYTES
        with self._file.transaction() as connection:
            rows = connection.execute(
                "UPDATE responses SET record_nbytes = record_nbytes + ?, used_s = ? WHERE id = ? AND runner = ? "
                "RETURNING record_nbytes",
                (nbytes, self._file.now(), id, runner),
            ).fetchall()
            if not rows or (_is_step(rows[0][0], nbytes) and not self._file.make_room(0, keep=id)):
                return False
            connection.execute("INSERT INTO records VALUES (?, ?, ?)", (id, place, lines))
        return True

    def end(self, id: str, runner: str, make_output: MakeOutput) -> bool:
        """The response has ended. False if it is not this runner's any more, or if there is no room."""
        with self._file.transaction() as connection:
            row = connection.execute(
                "SELECT body, nbytes, text_nbytes FROM responses WHERE id = ? AND runner = ?", (id, runner)
            ).fetchone()
            if row is None:
                return False
            lines = connection.execute("SELECT lines FROM records WHERE response = ? ORDER BY place", (id,))
            record = b"".join(bytes(one) for (one,) in lines)
            output = make_output(bytes(row[0]), record)
            write_record(connection, id, record)
            more_nbytes = len(output.body) - len(row[0]) + size_of(output.items)
            if not self._file.make_room(max(0, more_nbytes), keep=id):
                return False
            connection.execute(
                "UPDATE responses SET nbytes = ?, text_nbytes = ?, used_s = ?, body = ?, status = ?, runner = NULL "
                "WHERE id = ?",
                (row[1] + more_nbytes, row[2] + more_nbytes, self._file.now(), output.body, output.status, id),
            )
            (first,) = connection.execute("SELECT COUNT(*) FROM items WHERE response = ?", (id,)).fetchone()
            add_items(connection, id, first, output.items, is_output=True)
        return True

    def page(self, owner: str, id: str, after: int) -> Page | None:
        """The response with the lines of its record from number ``after`` on, at least one if there are any. None if
        it is not found."""
        with self._file.transaction() as connection:
            row = connection.execute(
                "SELECT body, status, runner FROM responses WHERE id = ? AND owner = ? AND body IS NOT NULL",
                (id, owner),
            ).fetchone()
            if row is None:
                return None
            lines, more = self._lines(id, after)
        return Page(bytes(row[0]), row[1], row[2] or "", lines, more)

    def runner(self, owner: str, id: str) -> str | None:
        """The worker that makes the response, empty if it has ended; None if the response is not found."""
        row = self._connection.execute(
            "SELECT runner FROM responses WHERE id = ? AND owner = ? AND body IS NOT NULL", (id, owner)
        ).fetchone()
        return None if row is None else row[0] or ""

    def is_replayable(self, owner: str, id: str) -> bool | None:
        """True if the response has a record, or will have one; None if it is not found."""
        row = self._connection.execute(
            "SELECT runner IS NOT NULL OR EXISTS (SELECT 1 FROM records WHERE response = r.id) FROM responses r "
            "WHERE id = ? AND owner = ? AND body IS NOT NULL",
            (id, owner),
        ).fetchone()
        return None if row is None else bool(row[0])

    def unfinished(self) -> list[tuple[str, str]]:
        """Id and runner of each response that some worker makes."""
        return self._connection.execute("SELECT id, runner FROM responses WHERE runner IS NOT NULL").fetchall()

    def _lines(self, id: str, after: int) -> tuple[list[bytes], bool]:
        rows = self._connection.execute(
            "SELECT place, lines FROM records WHERE response = :id AND place >= "
            "(SELECT MAX(place) FROM records WHERE response = :id AND place <= :after) ORDER BY place",
            {"id": id, "after": after},
        )
        lines: list[bytes] = []
        nbytes = 0
        for place, data in rows:
            if nbytes >= _PAGE_NBYTES:
                rows.close()
                return lines, True
            lines += bytes(data).splitlines()[max(0, after - place) :]
            nbytes = sum(map(len, lines))
        return lines, False


def _is_step(nbytes: int, more_nbytes: int) -> bool:
    """True if a record of ``nbytes``, of which ``more_nbytes`` are new, has begun a step."""
    before_nbytes = nbytes - more_nbytes
    return not before_nbytes or nbytes // _STEP_NBYTES > before_nbytes // _STEP_NBYTES
