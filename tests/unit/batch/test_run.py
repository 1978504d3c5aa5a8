"""Runs of batches: each line has one result, whatever happens to others, and a run goes on where another stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from mmserve.batch import output
from mmserve.batch.lines import BatchLine
from mmserve.batch.output import BatchFiles, BatchWriter
from mmserve.batch.resume import opened
from mmserve.batch.run import NoReply, Progress, run_batch
from mmserve.batch.source import BadLine, check, read_lines
from mmserve.runtime.errors import StartupError
from mmserve.runtime.patience import Reply

REPLY = Reply(200, b'{"usage": {"prompt_tokens": 2, "completion_tokens": 3}}', "r")


class Run:
    """One input, and its output files."""

    def __init__(self, directory: Path) -> None:
        self.source, self.answers, self.errors = (directory / name for name in ("in", "out", "errors"))
        self.sent: list[str] = []
        self.most_at_once = 0
        self._now = 0

    def write(self, *names: str) -> None:
        lines = [
            json.dumps({"custom_id": name, "method": "POST", "url": "/v1/completions", "body": {}}) if name else "{"
            for name in names
        ]
        self.source.write_text("\n".join(lines) + "\n")

    def go(
        self,
        answer: Callable[[BatchLine], Awaitable[Reply]] | None = None,
        *,
        max_in_flight: int = 4,
        stop: asyncio.Event | None = None,
        retry_errors: bool = False,
    ) -> Progress:
        async def count(line: BatchLine) -> Reply:
            self.sent.append(line.custom_id)
            self._now += 1
            self.most_at_once = max(self.most_at_once, self._now)
            reply = REPLY if answer is None else await answer(line)
            self._now -= 1
            return reply

        async def main(files: BatchFiles) -> Progress:
            progress = Progress(files.answered, files.failed)
            async with BatchWriter(files) as writer:
                lines = read_lines(self.source)
                await run_batch(lines, files.done, count, writer, max_in_flight, progress, stop=stop)
            return progress

        with opened(self.source, check(self.source), self.answers, self.errors, retry_errors=retry_errors) as files:
            return asyncio.run(main(files))

    def names(self, path: Path) -> list[str | None]:
        return sorted((json.loads(line)["custom_id"] for line in path.read_text().splitlines()), key=str)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_every_line_is_answered_so_many_at_once(run: Run) -> None:
    names = [f"{number:03}" for number in range(100)]
    run.write(*names)
    seven = asyncio.Barrier(7)

    async def answer(line: BatchLine) -> Reply:
        if line.number <= 7:
            await seven.wait()
        return REPLY

    assert run.go(answer, max_in_flight=7) == Progress(100, 0, 200, 300)
    assert run.names(run.answers) == names
    assert run.most_at_once == 7
    assert not run.errors.exists()


def test_one_bad_line_harms_one_line(run: Run) -> None:
    async def answer(line: BatchLine) -> Reply:
        if line.custom_id == "lost":
            raise NoReply("connection refused")
        return Reply(400, b'{"error": {}}') if line.custom_id == "wrong" else REPLY

    run.write("a", "", "wrong", "b", "lost", "a", "c")
    progress = run.go(answer)
    assert (progress.answered, progress.failed) == (3, 4)
    assert run.names(run.answers) == ["a", "b", "c"]
    assert run.names(run.errors) == [None, None, "lost", "wrong"]
    assert run.sent == ["a", "wrong", "b", "lost", "c"]


def test_a_run_goes_on_where_another_stopped(run: Run) -> None:
    stop = asyncio.Event()

    async def answer(line: BatchLine) -> Reply:
        if line.custom_id == "b":
            stop.set()
        return REPLY

    run.write("a", "b", "", "c", "d")
    assert run.go(answer, max_in_flight=1, stop=stop).answered == 2
    with open(run.answers, "a") as file:
        file.write('{"id": "batch_req_1", "custom_id": "c", "resp')  # a torn line, of a run that was killed
    run.sent.clear()
    assert run.go().answered == 4
    assert run.sent == ["c", "d"]
    assert run.names(run.answers) == ["a", "b", "c", "d"]
    assert run.names(run.errors) == [None]
    run.sent.clear()
    assert run.go() == Progress(4, 1)
    assert not run.sent


def test_no_line_is_begun_after_the_stop(run: Run) -> None:
    """It comes while the first lines are read, for which all tasks wait."""
    stop = asyncio.Event()
    run.write("a", "b", "c")

    def lines() -> Iterator[BatchLine | BadLine]:
        stop.set()
        yield from read_lines(run.source)

    async def answer(line: BatchLine) -> Reply:
        raise AssertionError("a line was begun")

    async def main(files: BatchFiles) -> None:
        async with BatchWriter(files) as writer:
            await run_batch(lines(), files.done, answer, writer, 2, Progress(), stop=stop)

    with opened(run.source, check(run.source), run.answers, run.errors, retry_errors=False) as files:
        asyncio.run(main(files))


def test_lines_may_be_added_to_the_input(run: Run) -> None:
    run.write("a")
    run.go()
    run.write("a", "b")
    assert run.go().answered == 2
    assert run.sent == ["a", "b"]


def test_another_input_is_refused(run: Run) -> None:
    run.write("a", "b")
    run.go()
    run.write("a", "c")
    with pytest.raises(StartupError, match="results of another input"):
        run.go()
    assert run.names(run.answers) == ["a", "b"]


def test_errors_are_sent_again_when_asked(run: Run) -> None:
    async def refuse(line: BatchLine) -> Reply:
        return REPLY if line.custom_id == "a" else Reply(429, b"{}")

    run.write("a", "b", "c")
    assert run.go(refuse).failed == 2
    run.sent.clear()
    assert run.go().failed == 2
    assert not run.sent
    assert run.go(retry_errors=True) == Progress(3, 0, 4, 6)
    assert run.sent == ["b", "c"]


def test_two_runs_do_not_write_one_file(run: Run) -> None:
    run.write("a")
    with (
        opened(run.source, check(run.source), run.answers, run.errors, retry_errors=False),
        pytest.raises(StartupError, match="another mmserve batch"),
    ):
        run.go()


def test_a_full_disk_ends_the_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    run.write(*map(str, range(50)))
    monkeypatch.setattr(output.os, "write", full)
    with pytest.raises((OSError, ExceptionGroup)) as caught:
        run.go()
    assert "No space" in repr(caught.value)
