"""Files and batches for the event loop: every access runs in a thread."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from mmserve.httpserver.batch_store.database import BatchDatabase
from mmserve.runtime.byte_budget import MIB
from mmserve.runtime.errors import NotFound, TooLarge, Unavailable
from mmserve.runtime.worker_threads import WorkerThreads

T = TypeVar("T")
_RETRY_AFTER_S = 5.0
logger = logging.getLogger(__name__)


class BatchStore:
    """``directory`` None: there are no files and batches. ``limit_nbytes``: of all contents. For one event loop.

    The directory is opened with the first access.
    """

    def __init__(self, directory: Path | None, limit_nbytes: int, max_file_nbytes: int) -> None:
        self.directory = directory
        self.max_file_nbytes = max_file_nbytes
        self.limit_nbytes = limit_nbytes
        self._database: BatchDatabase | None = None
        self._threads = WorkerThreads("batches", 1)

    @property
    def is_enabled(self) -> bool:
        return self.directory is not None

    async def run(self, work: Callable[[BatchDatabase], T]) -> T:
        """Raises NotFound if there are no files and batches here, Unavailable if they cannot be read or written."""
        if self.directory is None:
            raise NotFound("this server keeps no files and batches: it was started without --batch-dir")
        try:
            return await self._threads.run(lambda: work(self._open()))
        except (sqlite3.Error, OSError) as error:
            logger.warning("files and batches cannot be read or written: %s", error)
            raise Unavailable("files and batches cannot be used now", retry_after_s=_RETRY_AFTER_S) from error

    async def aclose(self) -> None:
        if (database := self._database) is not None:
            await self._threads.run(database.close)
        self._threads.close()

    def _open(self) -> BatchDatabase:
        if self._database is None:
            assert self.directory is not None
            self._database = BatchDatabase(self.directory)
        return self._database


class NewContent:
    """A file that is being received. Its methods are blocking. ``room_nbytes``: what it may have."""

    def __init__(self, database: BatchDatabase, room_nbytes: int, max_file_nbytes: int) -> None:
        self.id = new_id("file-")
        self.nbytes = 0
        self._room_nbytes = room_nbytes
        self._max_file_nbytes = max_file_nbytes
        self._path = database.path_of(self.id)
        self._file: BinaryIO | None = open(self._path, "xb")  # noqa: SIM115 - closed by close()

    def write(self, data: bytes) -> None:
        """Raises TooLarge and OSError."""
        assert self._file is not None
        self.nbytes += len(data)
        if self.nbytes > self._max_file_nbytes:
            raise TooLarge(
                f"the file is larger than {self._max_file_nbytes / MIB:g} MiB (--batch-file-mb)", param="file"
            )
        if self.nbytes > self._room_nbytes:
            raise TooLarge(
                "with this file there would be more than --batch-storage-mb: delete files first", param="file"
            )
        self._file.write(data)

    def keep(self) -> None:
        """The content is complete."""
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._file = None

    def close(self) -> None:
        """Delete it, unless it is kept."""
        if self._file is not None:
            self._file.close()
            self._path.unlink(missing_ok=True)


def new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex


def today_s() -> int:
    """The time of day that clients are shown, in seconds since 1970."""
    return int(time.time())
