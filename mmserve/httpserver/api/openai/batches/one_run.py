"""One batch from its validation to its end. Every state is stored, so that another process can go on from it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from mmserve.batch.lines import BatchLine, LineError, error_line, tokens_of_line
from mmserve.batch.output import BatchFiles, BatchWriter
from mmserve.batch.run import NoReply, Progress, Unsent, run_batch
from mmserve.batch.source import BadLine, Checked, check, read_lines
from mmserve.httpserver.api.openai.batches.in_process import Endpoint, ask
from mmserve.httpserver.batch_store.database import BatchDatabase
from mmserve.httpserver.batch_store.records import (
    BatchError,
    BatchErrors,
    BatchUsage,
    RequestCounts,
    Status,
    StoredBatch,
    StoredFile,
    output_ids,
)
from mmserve.httpserver.batch_store.store import BatchStore, today_s
from mmserve.runtime.patience import Reply, patiently
from mmserve.runtime.uncancelled import to_completion

MAX_LINES = 50_000
_MAX_ERRORS = 50
"""Bad lines that a batch names."""
_REPORT_INTERVAL_S = 1.0
_PATIENCE_S = 86400.0
"""For an engine that is full or restarts; the batch's own deadline comes first."""
_UNSENT = {
    "expired": LineError("batch_expired", "this request was not executed before the completion window expired"),
    "cancelled": LineError("batch_cancelled", "this request was not executed before the batch was cancelled"),
}
logger = logging.getLogger(__name__)


class BatchRun:
    """``owner``: name of the API key whose batch it is. For one event loop."""

    def __init__(
        self, store: BatchStore, endpoint: Endpoint, max_in_flight: int, owner: str, batch: StoredBatch
    ) -> None:
        self._store = store
        self._endpoint = endpoint
        self._max_in_flight = max_in_flight
        self._owner = owner
        self._batch = batch
        self._halt = asyncio.Event()
        self._look = asyncio.Event()
        self._at_once = asyncio.Event()
        self._stopping = False
        self._end: Status = "completed"
        """What the batch is in the end, as far as is known."""

    def stop(self) -> None:
        """Begin no more lines, and leave the batch as it is: the process ends."""
        self._stopping = True
        self._halt.set()

    def look(self) -> None:
        """The batch may have been cancelled."""
        self._at_once.set()
        self._look.set()

    async def go(self) -> None:
        """Raises MmserveError and OSError."""
        if self._batch.status == "validating" and not await self._validate():
            return
        source = await self._store.run(lambda db: db.path_of(self._batch.input_file_id))
        answers, errors = await self._store.run(lambda db: tuple(map(db.path_of, output_ids(self._batch.id))))
        files = await asyncio.to_thread(BatchFiles, answers, errors)
        try:
            if self._batch.status == "cancelling":
                self._end = "cancelled"
            elif self._batch.status == "in_progress":
                await self._answer_lines(source, files)
            if self._stopping:
                return
            if (reason := _UNSENT.get(self._end)) is not None:
                # Another process may go on with the batch once this task has ended: no thread may still write then.
                await to_completion(asyncio.to_thread(_add_unsent, source, answers, errors, files, reason))
        finally:
            await asyncio.to_thread(files.close)
        await self._finalize(answers, errors)

    async def _validate(self) -> bool:
        """False if the batch has ended by it."""
        path = await self._store.run(lambda db: db.path_of(self._batch.input_file_id))
        try:
            checked = await asyncio.to_thread(check, path, self._batch.endpoint, _MAX_ERRORS)
        except OSError as error:
            problems = [BatchError("invalid_file", f"the input file cannot be read: {error.strerror}")]
        else:
            problems = _problems(checked)

        def change(batch: StoredBatch) -> None:
            if problems:
                batch.status, batch.failed_at, batch.errors = "failed", today_s(), BatchErrors(problems)
                return
            batch.request_counts.total = checked.total
            if batch.status == "validating":
                batch.status, batch.in_progress_at = "in_progress", today_s()

        self._batch = await self._changed(change)
        return not problems

    async def _answer_lines(self, source: Path, files: BatchFiles) -> None:
        progress = Progress(files.answered, files.failed)
        left_s = max(0, self._batch.expires_at - today_s())
        expiry = asyncio.get_running_loop().call_later(left_s, self._halt_as, "expired")
        reporting = asyncio.create_task(self._report(progress), name=f"progress of {self._batch.id}")
        try:
            async with BatchWriter(files, self._look.set) as writer:
                lines = read_lines(source, self._batch.endpoint)
                await run_batch(lines, files.done, self._answer, writer, self._max_in_flight, progress, stop=self._halt)
        finally:
            expiry.cancel()
            reporting.cancel()
        if self._halt.is_set() and progress.answered + progress.failed == self._batch.request_counts.total:
            self._end = "completed"  # the last lines ended after all

    async def _answer(self, line: BatchLine) -> Reply:
        was_refused = False

        async def attempt() -> tuple[Reply, float]:
            nonlocal was_refused
            if was_refused and self._halt.is_set():
                raise Unsent
            was_refused = True
            return await ask(line.url, self._endpoint, line.body, self._owner)

        try:
            return await patiently(attempt, _PATIENCE_S)
        except Unsent:
            raise
        except Exception as error:  # the boundary of a line
            logger.exception("a line of batch %s failed", self._batch.id)
            raise NoReply("internal error") from error

    async def _report(self, progress: Progress) -> None:
        """Store how far it is, once a second unless ``look`` is called, and see whether it is cancelled."""
        while True:
            await self._look.wait()
            self._look.clear()
            counts = _counts(self._batch, progress.answered, progress.failed)
            self._batch, used_nbytes = await self._store.run(partial(_progressed, self._batch.id, counts))
            if self._batch.status == "cancelling":
                self._halt_as("cancelled")
            elif used_nbytes > self._store.limit_nbytes:
                self._halt_as("failed")
            with suppress(TimeoutError):
                async with asyncio.timeout(_REPORT_INTERVAL_S):
                    await self._at_once.wait()
            self._at_once.clear()

    def _halt_as(self, end: Status) -> None:
        self._end = end
        self._halt.set()

    async def _finalize(self, answers: Path, errors: Path) -> None:
        counts, usage = await asyncio.to_thread(_summary, answers, errors)

        def change(batch: StoredBatch) -> None:
            if self._end == "completed":
                batch.status, batch.finalizing_at = "finalizing", today_s()

        self._batch = await self._changed(change)
        await self._store.run(lambda db: self._end_in(db, counts, usage))

    def _end_in(self, db: BatchDatabase, counts: RequestCounts, usage: BatchUsage) -> None:
        now_s = today_s()
        expiry = self._batch.output_expires_after
        ids: list[str | None] = []
        for id, name in zip(output_ids(self._batch.id), ("output", "errors"), strict=True):
            if not (path := db.path_of(id)).exists():
                ids.append(None)
                continue
            ids.append(id)
            file = StoredFile(
                id=id,
                bytes=path.stat().st_size,
                created_at=now_s,
                expires_at=None if expiry is None else now_s + expiry.seconds,
                filename=f"{self._batch.id}_{name}.jsonl",
                purpose="batch_output",
            )
            db.add_file(self._owner, file)

        def change(batch: StoredBatch) -> None:
            batch.output_file_id, batch.error_file_id = ids
            # A batch that is cancelled before it is validated has no total yet.
            total = max(batch.request_counts.total, counts.completed + counts.failed)
            batch.request_counts = RequestCounts(total, counts.completed, counts.failed)
            batch.usage = usage
            batch.status = self._end
            setattr(batch, f"{self._end}_at", now_s)
            if self._end == "failed":
                batch.errors = BatchErrors([BatchError("storage_full", "there is no more room (--batch-storage-mb)")])

        db.change_batch(self._batch.id, change)

    async def _changed(self, change: Callable[[StoredBatch], None]) -> StoredBatch:
        return await self._store.run(lambda db: db.change_batch(self._batch.id, change))


def failed(code: str, message: str) -> Callable[[StoredBatch], None]:
    """A change that ends a batch."""

    def change(batch: StoredBatch) -> None:
        batch.status, batch.failed_at = "failed", today_s()
        batch.errors = BatchErrors([BatchError(code, message)])

    return change


def _problems(checked: Checked) -> list[BatchError]:
    if not checked.total:
        return [BatchError("empty_file", "the input file has no line")]
    if checked.total > MAX_LINES:
        return [BatchError("too_many_tasks", f"the input file has more than {MAX_LINES} lines")]
    return [BatchError(bad.error.code, bad.error.message, bad.number, bad.error.param) for bad in checked.bad]


def _progressed(id: str, counts: RequestCounts, db: BatchDatabase) -> tuple[StoredBatch, int]:
    def change(batch: StoredBatch) -> None:
        batch.request_counts = counts

    return db.change_batch(id, change), db.used_nbytes()


def _counts(batch: StoredBatch, completed: int, failed: int) -> RequestCounts:
    return RequestCounts(batch.request_counts.total, completed, failed)


def _add_unsent(source: Path, answers: Path, errors: Path, files: BatchFiles, reason: LineError) -> None:
    """Give every line without a result one that says why. Blocking."""
    done = BatchFiles(answers, errors).done
    for line in read_lines(source):
        if isinstance(line, BadLine) or line.custom_id not in done:
            name, number = (None, line.number) if isinstance(line, BadLine) else (line.custom_id, None)
            files.write(b"", error_line(name, reason, number))


def _summary(answers: Path, errors: Path) -> tuple[RequestCounts, BatchUsage]:
    """Blocking."""
    tokens = [tokens_of_line(line) for line in _lines(answers)]
    prompt_tokens, completion_tokens = (sum(column) for column in zip(*tokens, strict=True)) if tokens else (0, 0)
    usage = BatchUsage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens)
    return RequestCounts(0, len(tokens), sum(1 for _ in _lines(errors))), usage


def _lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines() if path.exists() else []
