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

from mmserve.httpserver.response_store.database import ChainSize, ResponseDatabase, StoredItem
from mmserve.runtime.errors import Unavailable
from mmserve.runtime.worker_threads import WorkerThreads

T = TypeVar("T")

_RETRY_AFTER_S = 5.0
logger = logging.getLogger(__name__)


class ResponseStore:
    """``limit_nbytes`` 0: nothing is stored. The file is opened with the first access. Used from one event loop."""

    def __init__(self, path: Path, limit_nbytes: int, ttl_s: float) -> None:
        self._open = partial(ResponseDatabase, path, limit_nbytes, ttl_s)
        self._database: ResponseDatabase | None = None
        self._threads = WorkerThreads("responses", 1)
        self.is_enabled = limit_nbytes > 0

    async def begin(
        self,
        owner: str,
        id: str,
        previous: str | None,
        make_items: Callable[[], Sequence[StoredItem]],
        text_nbytes: int,
    ) -> bool:
        """Store the input of a response; ``make_items`` is called in the thread. False if it is not stored."""
        return await self._write(lambda db: db.begin(owner, id, previous, make_items(), text_nbytes))

    async def finish(self, id: str, body: bytes, items: Sequence[StoredItem]) -> bool:
        """Store the response itself and its output. False if it is not stored."""
        return await self._write(lambda db: db.finish(id, body, items))

    async def forget(self, id: str) -> None:
        """Delete what is stored of a response that does not end."""

        def forget(db: ResponseDatabase) -> bool:
            db.forget(id)
            return True

        await self._write(forget)

    async def delete(self, owner: str, id: str) -> bool:
        """False if there is no such response. Raises Unavailable."""
        return self.is_enabled and await self._read(lambda db: db.delete(owner, id))

    async def size(self, owner: str, id: str) -> int | None:
        """Bytes of a response with its items; None if there is none. Raises Unavailable."""
        return await self._read(lambda db: db.size(owner, id)) if self.is_enabled else None

    async def body(self, owner: str, id: str) -> bytes | None:
        """The response as JSON; None if there is none. Raises Unavailable."""
        return await self._read(lambda db: db.body(owner, id)) if self.is_enabled else None

    async def input_items(self, owner: str, id: str) -> list[bytes]:
        """JSON of the items of the request itself, in order. Raises Unavailable."""
        return await self._read(lambda db: db.input_items(owner, id)) if self.is_enabled else []

    async def chain_size(self, owner: str, id: str, most: int) -> ChainSize | None:
        """None if the response or one that it continues is not stored. Raises Unavailable."""
        return await self._read(lambda db: db.chain_size(owner, id, most)) if self.is_enabled else None

    async def chain_items(self, owner: str, id: str, most: int) -> list[bytes]:
        """JSON of all items of a response and of those that it continues, the oldest first. Raises Unavailable."""
        return await self._read(lambda db: db.chain_items(owner, id, most))

    async def aclose(self) -> None:
        """Call when no request is left."""
        if (database := self._database) is not None:
            await self._threads.run(database.close)
        self._threads.close()

    async def _write(self, work: Callable[[ResponseDatabase], bool]) -> bool:
        if not self.is_enabled:
            return False
        try:
            return await self._threads.run(lambda: work(self._opened()))
        except (sqlite3.Error, OSError, Unavailable) as error:
            logger.warning("a response is not stored: %s", error)
            return False

    async def _read(self, work: Callable[[ResponseDatabase], T]) -> T:
        try:
            return await self._threads.run(lambda: work(self._opened()))
        except (sqlite3.Error, OSError) as error:
            logger.warning("stored responses cannot be read: %s", error)
            raise Unavailable("stored responses cannot be read now", retry_after_s=_RETRY_AFTER_S) from error

    def _opened(self) -> ResponseDatabase:
        if self._database is None:
            self._database = self._open()
        return self._database
