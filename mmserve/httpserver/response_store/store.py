"""Stored responses for the event loop: every access runs in a thread.

A failure of the database never fails an answer: the response is then not stored. Only what must be read is a 503.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from mmserve.httpserver.response_store.database import ChainSize, ResponseDatabase, StoredItem, StoredOutput
from mmserve.httpserver.response_store.file import StoreFile
from mmserve.httpserver.response_store.run_table import MakeOutput, Page, RunTable
from mmserve.httpserver.response_store.runner_lock import RunnerLock, is_alive
from mmserve.httpserver.response_store.runs import BackgroundRuns
from mmserve.runtime.errors import Unavailable
from mmserve.runtime.worker_threads import WorkerThreads

T = TypeVar("T")

_RETRY_AFTER_S = 5.0
logger = logging.getLogger(__name__)


class _Opened:
    """The file and its tables. ``lock``: this process's, held from its first response in the background on."""

    def __init__(self, path: Path, limit_nbytes: int, ttl_s: float) -> None:
        self.file = StoreFile(path, limit_nbytes, ttl_s)
        self.responses = ResponseDatabase(self.file)
        self.runs = RunTable(self.file)
        self.lock: RunnerLock | None = None

    def hold_lock(self, worker: int) -> str:
        """The name of this process as a runner."""
        if self.lock is None:
            self.lock = RunnerLock(self.file.path, worker)
        return self.lock.name

    def close(self) -> None:
        if self.lock is not None:
            self.lock.close()
        self.file.close()


class ResponseStore:
    """``limit_nbytes`` 0: nothing is stored. The file is opened with the first access. Used from one event loop.

    ``runs``: the responses that this worker makes in the background.
    """

    def __init__(self, path: Path, limit_nbytes: int, ttl_s: float, runs: BackgroundRuns) -> None:
        self._path = path
        self._open = partial(_Opened, path, limit_nbytes, ttl_s)
        self._opened: _Opened | None = None
        self._threads = WorkerThreads("responses", 1)
        self.is_enabled = limit_nbytes > 0
        self.runs = runs

    async def begin(
        self,
        owner: str,
        id: str,
        attempt: str,
        previous: str | None,
        make_items: Callable[[], Sequence[StoredItem]],
        text_nbytes: int,
    ) -> bool:
        """Store the input of a response; ``make_items`` is called in the thread. ``attempt``: id of the request. False
        if it is not stored."""
        return await self._write(lambda db: db.responses.begin(owner, id, attempt, previous, make_items(), text_nbytes))

    async def begin_run(
        self,
        owner: str,
        id: str,
        attempt: str,
        previous: str | None,
        make_items: Callable[[], Sequence[StoredItem]],
        text_nbytes: int,
        body: bytes,
    ) -> bool:
        """As ``begin``, for a response that this worker makes in the background."""

        def begin(db: _Opened) -> bool:
            runner = db.hold_lock(self.runs.worker)
            return db.responses.begin(owner, id, attempt, previous, make_items(), text_nbytes, body, runner)

        return await self._write(begin)

    async def finish(self, id: str, attempt: str, output: StoredOutput) -> bool:
        """Store the response itself and its output. False if it is not stored."""
        return await self._write(lambda db: db.responses.finish(id, attempt, output))

    async def forget(self, id: str, attempt: str) -> None:
        """Delete what is stored of a response that does not end."""

        def forget(db: _Opened) -> bool:
            db.responses.forget(id, attempt)
            return True

        await self._write(forget)

    async def start(self, id: str, body: bytes) -> bool:
        """A queued response of this worker is in progress. False if it is not this worker's any more, or cannot be
        written; so for ``append`` and ``end``."""
        return await self._write(lambda db: db.runs.start(id, db.hold_lock(self.runs.worker), body))

    async def append(self, id: str, place: int, lines: bytes) -> bool:
        """Add lines to the record of a response that this worker makes; ``place``: number of the first."""
        return await self._write(lambda db: db.runs.append(id, db.hold_lock(self.runs.worker), place, lines))

    async def end(self, id: str, make_output: MakeOutput, runner: str = "") -> bool:
        """End a response that this worker makes, or another ``runner``. ``make_output`` is called in the thread."""
        return await self._write(lambda db: db.runs.end(id, runner or db.hold_lock(self.runs.worker), make_output))

    async def end_lost(self, make_output: MakeOutput) -> None:
        """End the responses whose runner has ended before them."""
        if not self.is_enabled or not self._path.exists():
            return

        def end(db: _Opened) -> bool:
            for id, runner in db.runs.unfinished():
                if not is_alive(db.file.path, runner):
                    db.runs.end(id, runner, make_output)
            return True

        await self._write(end)

    async def page(self, owner: str, id: str, after: int, make_output: MakeOutput) -> Page | None:
        """See RunTable. A response whose runner has ended before it is ended first. Raises Unavailable."""

        def page(db: _Opened) -> Page | None:
            found = db.runs.page(owner, id, after)
            if found is None or not found.runner or is_alive(db.file.path, found.runner):
                return found
            db.runs.end(id, found.runner, make_output)
            return db.runs.page(owner, id, after)

        return await self._read(page) if self.is_enabled else None

    async def is_replayable(self, owner: str, id: str) -> bool | None:
        """See RunTable. Raises Unavailable."""
        return await self._read(lambda db: db.runs.is_replayable(owner, id)) if self.is_enabled else None

    async def runner(self, owner: str, id: str) -> str | None:
        """See RunTable. Raises Unavailable."""
        return await self._read(lambda db: db.runs.runner(owner, id)) if self.is_enabled else None

    async def delete(self, owner: str, id: str) -> str | None:
        """See ResponseDatabase. Raises Unavailable."""
        return await self._read(lambda db: db.responses.delete(owner, id)) if self.is_enabled else None

    async def size(self, owner: str, id: str) -> int | None:
        """Bytes of a response with its items; None if there is none. Raises Unavailable."""
        return await self._read(lambda db: db.responses.size(owner, id)) if self.is_enabled else None

    async def body(self, owner: str, id: str, make_output: MakeOutput) -> bytes | None:
        """The response as JSON; None if there is none. One whose runner has ended before it is ended first. Raises
        Unavailable."""

        def body(db: _Opened) -> bytes | None:
            runner = db.runs.runner(owner, id)
            if runner and not is_alive(db.file.path, runner):
                db.runs.end(id, runner, make_output)
            return db.responses.body(owner, id)

        return await self._read(body) if self.is_enabled else None

    async def input_items(self, owner: str, id: str) -> list[bytes]:
        """JSON of the items of the request itself, in order. Raises Unavailable."""
        return await self._read(lambda db: db.responses.input_items(owner, id)) if self.is_enabled else []

    async def items(self, owner: str, ids: Sequence[str]) -> list[bytes | None]:
        """JSON of each item, None for those that are not found. Raises Unavailable."""
        if not self.is_enabled:
            return [None] * len(ids)
        return await self._read(lambda db: [db.responses.item(owner, id) for id in ids])

    async def item_sizes(self, owner: str, ids: Sequence[str]) -> list[int]:
        """Bytes of each item, 0 for those that are not found. Raises Unavailable."""
        if not self.is_enabled:
            return [0] * len(ids)
        return await self._read(lambda db: [db.responses.item_size(owner, id) for id in ids])

    async def chain_size(self, owner: str, id: str, most: int) -> ChainSize | None:
        """None if the response or one that it continues is not stored. Raises Unavailable."""
        return await self._read(lambda db: db.responses.chain_size(owner, id, most)) if self.is_enabled else None

    async def chain_items(self, owner: str, id: str, most: int) -> list[bytes]:
        """JSON of all items of a response and of those that it continues, the oldest first. Raises Unavailable."""
        return await self._read(lambda db: db.responses.chain_items(owner, id, most))

    async def aclose(self) -> None:
        """Call when no request is left."""
        self.runs.close()
        if (opened := self._opened) is not None:
            await self._threads.run(opened.close)
        self._threads.close()

    async def _write(self, work: Callable[[_Opened], bool]) -> bool:
        if not self.is_enabled:
            return False
        try:
            return await self._threads.run(lambda: work(self._open_once()))
        except (sqlite3.Error, OSError, Unavailable) as error:
            logger.warning("a response is not stored: %s", error)
            return False

    async def _read(self, work: Callable[[_Opened], T]) -> T:
        try:
            return await self._threads.run(lambda: work(self._open_once()))
        except (sqlite3.Error, OSError) as error:
            logger.warning("stored responses cannot be read: %s", error)
            raise Unavailable("stored responses cannot be read now", retry_after_s=_RETRY_AFTER_S) from error

    def _open_once(self) -> _Opened:
        if self._opened is None:
            self._opened = self._open()
        return self._opened
