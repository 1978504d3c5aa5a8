"""Responses in the background in the file: who may change one, what is read of its record, what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mmserve.httpserver.response_store.database import RECORD_ROW_NBYTES, ResponseDatabase, StoredItem, StoredOutput
from mmserve.httpserver.response_store.file import StoreFile
from mmserve.httpserver.response_store.run_table import RunTable
from mmserve.httpserver.response_store.runner_lock import RunnerLock, is_alive, worker_of

INPUT = [StoredItem("in", b"i")]


class Tables:
    def __init__(self, path: Path, limit_nbytes: int = 10**6, ttl_s: float = 10**6) -> None:
        self.clock = 0.0
        self.file = StoreFile(path, limit_nbytes, ttl_s, lambda: self.clock)
        self.responses, self.runs = ResponseDatabase(self.file), RunTable(self.file)

    def begin(self, id: str = "a", runner: str = "0.x") -> bool:
        return self.responses.begin("ann", id, "1", None, INPUT, 1, b"queued", runner)

    def finish(self, id: str, nbytes: int) -> bool:
        output = StoredOutput("completed", b"b" * nbytes)
        return self.responses.begin("ann", id, "1", None, INPUT, 1) and self.responses.finish(id, "1", output)


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    made = Tables(tmp_path / "responses.db", 100_000, 100)
    yield made
    made.file.close()


def ended(body: bytes, record: bytes) -> StoredOutput:
    return StoredOutput("completed", body + b" ended after " + record.replace(b"\n", b" "), [StoredItem("out", b"o")])


def test_a_response_is_found_from_the_beginning_and_continued_when_it_has_ended(tables: Tables) -> None:
    assert tables.begin()
    page = tables.runs.page("ann", "a", 0)
    assert page is not None
    assert (page.body, page.status, page.runner, page.lines) == (b"queued", "queued", "0.x", [])
    assert tables.runs.page("bob", "a", 0) is None
    assert tables.runs.start("a", "0.x", b"runs")
    assert tables.responses.body("ann", "a") == b"runs"
    size = tables.responses.chain_size("ann", "a", 9)
    assert size is not None
    assert size.status == "in_progress"
    assert tables.runs.end("a", "0.x", ended)
    size = tables.responses.chain_size("ann", "a", 9)
    assert size is not None
    assert size.status == "completed"
    assert tables.responses.chain_items("ann", "a", 9) == [b"i", b"o"]
    assert tables.runs.runner("ann", "a") == ""
    assert tables.runs.unfinished() == []


def test_whoever_ends_a_response_first_does(tables: Tables) -> None:
    tables.begin()
    tables.runs.append("a", "0.x", 0, b"1\n")
    assert tables.runs.end("a", "0.x", ended)
    assert tables.responses.body("ann", "a") == b"queued ended after 1 "
    assert not tables.runs.start("a", "0.x", b"runs")
    assert not tables.runs.append("a", "0.x", 1, b"2\n")
    assert not tables.runs.end("a", "0.x", lambda body, record: StoredOutput("failed", b"no"))
    assert tables.responses.body("ann", "a") == b"queued ended after 1 "
    assert not tables.runs.end("none", "0.x", ended)


@pytest.mark.parametrize("is_ended", [False, True])
def test_a_record_is_read_from_any_line_on(tmp_path: Path, is_ended: bool) -> None:
    tables = Tables(tmp_path / "responses.db")
    tables.begin()
    lines = [str(number).encode() * 400 for number in range(500)]
    for first in range(0, len(lines), 5):
        written = b"".join(line + b"\n" for line in lines[first : first + 5])
        assert tables.runs.append("a", "0.x", first, written)
    if is_ended:
        tables.runs.end("a", "0.x", ended)
    for start in (0, 1, 7, 499, 500):
        read, more = list[bytes](), True
        while more:
            page = tables.runs.page("ann", "a", start + len(read))
            assert page is not None
            assert sum(map(len, page.lines)) < 2 * RECORD_ROW_NBYTES
            read, more = read + page.lines, page.more
        assert read == lines[start:]
    tables.file.close()


def test_only_what_was_streamed_or_made_in_the_background_can_be_replayed(tables: Tables) -> None:
    tables.finish("whole", 1)
    tables.responses.begin("ann", "streamed", "1", None, INPUT, 1)
    tables.responses.finish("streamed", "1", StoredOutput("completed", b"b", record=b""))
    tables.begin()
    assert [tables.runs.is_replayable("ann", id) for id in ("whole", "streamed", "a")] == [False, True, True]
    tables.runs.end("a", "0.x", ended)
    assert tables.runs.is_replayable("ann", "a")
    assert tables.runs.is_replayable("bob", "a") is None


def test_a_response_under_way_stays_and_its_record_takes_the_place_of_others(tables: Tables) -> None:
    tables.finish("old", 60_000)
    tables.begin()
    tables.clock = 1000.0  # after the time to live
    assert tables.runs.append("a", "0.x", 0, b"r" * 50_000 + b"\n")
    assert tables.responses.body("ann", "old") is None
    assert not tables.finish("large", 60_000)  # there is no room beside the record
    assert tables.finish("small", 10_000)
    assert not tables.runs.append("a", "0.x", 1, b"r" * 60_000 + b"\n")
    assert not tables.runs.end("a", "0.x", lambda body, record: StoredOutput("completed", b"b" * 80_000))
    assert tables.runs.end("a", "0.x", lambda body, record: StoredOutput("failed", b"no room"))
    assert tables.responses.body("ann", "a") == b"no room"
    tables.clock = 2000.0
    assert tables.responses.size("ann", "a") is None


def test_a_refused_or_deleted_response_is_not_its_runners_any_more(tables: Tables) -> None:
    tables.begin()
    tables.responses.forget("a", "1")
    assert not tables.runs.start("a", "0.x", b"runs")
    tables.begin("b")
    assert tables.responses.delete("ann", "b") == "0.x"
    assert not tables.runs.append("b", "0.x", 0, b"1\n")


def test_a_runner_lives_as_long_as_it_holds_its_lock(tmp_path: Path) -> None:
    store = tmp_path / "responses.db"
    lock = RunnerLock(store, 3)
    assert worker_of(lock.name) == 3
    assert is_alive(store, lock.name)
    lock.close()
    assert not is_alive(store, lock.name)
    left = store.with_name(f"responses-runner-{lock.name}")
    left.touch()  # as a killed process leaves it
    assert not is_alive(store, lock.name)
    assert not left.exists()
