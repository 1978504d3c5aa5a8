"""Sends the lines of a batch, many at once, and writes each result when it comes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass

from mmserve.batch.lines import BatchLine, LineError, error_line, response_line, tokens_of
from mmserve.batch.output import BatchWriter
from mmserve.batch.source import BadLine
from mmserve.runtime.patience import Reply

_TAKEN_LINES = 32
_TAKEN_NBYTES = 1 << 20
"""Of lines that are read ahead; a single line may be longer."""


@dataclass
class Progress:
    """Lines that have a result, and the tokens of those of this run."""

    answered: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class NoReply(Exception):
    """There is no response to a line, and another try would not help. One line."""


class Unsent(Exception):
    """The line has no result: another run may answer it."""


Answer = Callable[[BatchLine], Awaitable[Reply]]
"""Answers a line. Raises NoReply and Unsent."""


async def run_batch(
    lines: Iterator[BatchLine | BadLine],
    done: Collection[str | int],
    answer: Answer,
    writer: BatchWriter,
    max_in_flight: int,
    progress: Progress,
    *,
    on_result: Callable[[], None] = lambda: None,
    stop: asyncio.Event | None = None,
) -> None:
    """Answer every line that is not in ``done``; once ``stop`` is set, begin no more. ``lines`` is read in threads.

    Each result is written and counted in ``progress``, and then ``on_result`` is called. Raises OSError.
    """
    ahead = _Ahead(lines, done)

    async def work() -> None:
        while (line := await ahead.take()) is not None:
            if stop is not None and stop.is_set():  # perhaps while the line was read
                return
            if isinstance(line, BadLine):
                writer.add(error_line(None, line.error, line.number), is_answer=False)
                progress.failed += 1
            else:
                await _answer(line, answer, writer, progress)
            on_result()

    async with asyncio.TaskGroup() as group:
        for _ in range(max_in_flight):
            group.create_task(work())


async def _answer(line: BatchLine, answer: Answer, writer: BatchWriter, progress: Progress) -> None:
    try:
        reply = await answer(line)
    except Unsent:
        return
    except NoReply as error:
        writer.add(error_line(line.custom_id, LineError("no_response", str(error))), is_answer=False)
        progress.failed += 1
        return
    is_answer = reply.status == 200
    writer.add(response_line(line, reply.status, reply.request_id, reply.content), is_answer=is_answer)
    if not is_answer:
        progress.failed += 1
        return
    progress.answered += 1
    prompt_tokens, completion_tokens = tokens_of(reply.content)
    progress.prompt_tokens += prompt_tokens
    progress.completion_tokens += completion_tokens


class _Ahead:
    """Lines that are read but not sent, and who may read more: one task at a time, in a thread."""

    def __init__(self, lines: Iterator[BatchLine | BadLine], done: Collection[str | int]) -> None:
        self._lines = lines
        self._done = done
        self._ready: list[BatchLine | BadLine] = []
        self._reading = asyncio.Lock()

    async def take(self) -> BatchLine | BadLine | None:
        """The next line that has no result; None at the end. Raises OSError."""
        async with self._reading:
            if not self._ready:
                self._ready = (await asyncio.to_thread(self._read))[::-1]
            return self._ready.pop() if self._ready else None

    def _read(self) -> list[BatchLine | BadLine]:
        taken, nbytes = [], 0
        for line in itertools.filterfalse(self._is_done, self._lines):
            taken.append(line)
            nbytes += len(line.body) if isinstance(line, BatchLine) else 0
            if len(taken) >= _TAKEN_LINES or nbytes >= _TAKEN_NBYTES:
                break
        return taken

    def _is_done(self, line: BatchLine | BadLine) -> bool:
        return (line.custom_id if isinstance(line, BatchLine) else line.number) in self._done
