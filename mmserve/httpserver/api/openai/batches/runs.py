"""Runs the batches of the directory, one after another, in the HTTP worker that is their leader."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

from mmserve.httpserver.api.openai.batches.in_process import Endpoint
from mmserve.httpserver.api.openai.batches.one_run import BatchRun, failed
from mmserve.httpserver.batch_store.leader import Leader
from mmserve.httpserver.batch_store.records import StoredBatch
from mmserve.httpserver.batch_store.store import BatchStore, today_s

logger = logging.getLogger(__name__)


class BatchRuns:
    """``endpoints``: what answers a line, by its url. ``max_in_flight``: lines at once. For one event loop."""

    def __init__(self, store: BatchStore, endpoints: Mapping[str, Endpoint], max_in_flight: int) -> None:
        self._store = store
        self._endpoints = endpoints
        self._max_in_flight = max_in_flight
        self._leader = None if store.directory is None else Leader(store.directory)
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._woken = asyncio.Event()
        self._running: BatchRun | None = None

    async def start(self) -> None:
        """Go on with batches that have not ended, if this worker becomes their leader. Raises MmserveError."""
        if self._leader is not None:
            await self._store.run(lambda db: None)  # makes the directory
            self._leader.open()
            self._task = asyncio.create_task(self._run_all(self._leader), name="batches")

    def wake(self) -> None:
        """There is a new batch, or one that is to be cancelled."""
        if self._leader is not None:
            self._leader.wake()

    def stop(self) -> None:
        """Begin no more lines. Those that are under way may end."""
        self._stopping.set()
        self._woken.set()
        if self._running is not None:
            self._running.stop()

    async def end(self) -> None:
        """Drop what is under way; another worker, or the next start of the server, goes on with it."""
        self.stop()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        if self._leader is not None:
            self._leader.close()

    async def _run_all(self, leader: Leader) -> None:
        await leader.elected()
        watching = asyncio.create_task(self._watch(leader), name="batch wake-ups")
        try:
            await self._store.run(lambda db: db.delete_orphans(today_s()))
            while not self._stopping.is_set():
                self._woken.clear()
                found = await self._store.run(lambda db: db.next_unended())
                if found is None:
                    await self._woken.wait()
                else:
                    await self._run_one(*found)
        finally:
            watching.cancel()

    async def _watch(self, leader: Leader) -> None:
        while True:
            await leader.woken()
            self._woken.set()
            if self._running is not None:
                self._running.look()

    async def _run_one(self, owner: str, batch: StoredBatch) -> None:
        run = self._running = BatchRun(self._store, self._endpoints[batch.endpoint], self._max_in_flight, owner, batch)
        try:
            await run.go()
        except Exception:  # the boundary of a batch: others must go on
            logger.exception("batch %s failed", batch.id)
            await self._store.run(lambda db: db.change_batch(batch.id, failed("server_error", "internal error")))
        finally:
            self._running = None
