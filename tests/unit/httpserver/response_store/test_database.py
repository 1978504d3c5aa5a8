"""The file of stored responses: who finds what, what makes room for what, two users of one file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mmserve.httpserver.response_store.database import ChainSize, ResponseDatabase, StoredItem, StoredOutput
from mmserve.httpserver.response_store.file import StoreFile

Open = Callable[..., ResponseDatabase]
CLOCK = [0.0]


@pytest.fixture
def open_database(tmp_path: Path) -> Iterator[Open]:
    """Opens the one file of the test. The clock counts its reads."""
    opened: list[StoreFile] = []

    def tick() -> float:
        CLOCK[0] += 1
        return CLOCK[0]

    def open_one(limit_nbytes: int = 10**6, ttl_s: float = 10**6) -> ResponseDatabase:
        opened.append(StoreFile(tmp_path / "responses.db", limit_nbytes, ttl_s, tick))
        return ResponseDatabase(opened[-1])

    yield open_one
    for file in opened:
        file.close()


def store(
    database: ResponseDatabase, id: str, previous: str | None = None, *, owner: str = "ann", size: int = 1
) -> bool:
    """A response with one item in and one out, each of ``size`` bytes or a little more."""
    items = [StoredItem(f"{id}-{way}", f"{id}-{way}".encode().ljust(size)) for way in ("in", "out")]
    return database.begin(owner, id, "1", previous, items[:1], size) and database.finish(
        id, "1", StoredOutput("completed", b"body " + id.encode(), items[1:])
    )


def test_a_response_is_found_once_it_is_finished_and_by_its_owner_alone(open_database: Open) -> None:
    database = open_database()
    assert database.begin("ann", "a", "1", None, [StoredItem("i", b"1")], 1)
    assert database.body("ann", "a") is None
    assert database.size("ann", "a") is None
    assert database.chain_size("ann", "a", 9) is None
    assert database.finish("a", "1", StoredOutput("completed", b"body", [StoredItem("o", b"2")]))
    assert database.body("ann", "a") == b"body"
    assert database.input_items("ann", "a") == [b"1"]
    assert database.body("bob", "a") is None
    assert database.size("bob", "a") is None
    assert database.chain_size("bob", "a", 9) is None
    assert database.chain_items("bob", "a", 9) == database.input_items("bob", "a") == []
    assert database.delete("bob", "a") is None
    assert database.delete("ann", "a") == ""  # nobody makes it any more
    assert database.body("ann", "a") is None


def test_a_response_that_was_begun_and_lost_may_begin_again(open_database: Open) -> None:
    """A front asks again for the answer of an HTTP worker that has died, at another worker of the server."""
    database = open_database()
    for attempt, input in (("1", b"1"), ("2", b"2")):
        assert database.begin("ann", "a", attempt, None, [StoredItem("i", input)], 1)
    assert database.finish("a", "2", StoredOutput("completed", b"body", [StoredItem("o", b"3")]))
    assert database.chain_items("ann", "a", 9) == [b"2", b"3"]
    for owner in ("ann", "bob"):  # one that is found stays
        with pytest.raises(sqlite3.IntegrityError):
            database.begin(owner, "a", "3", None, [StoredItem("i", b"4")], 1)
    assert database.chain_items("ann", "a", 9) == [b"2", b"3"]


def test_an_attempt_that_still_runs_neither_ends_nor_drops_the_one_after_it(open_database: Open) -> None:
    """The front has lost its connection to the first, asks again here, and the first notices later."""
    database = open_database()
    for attempt, input in (("1", b"1"), ("2", b"2")):
        assert database.begin("ann", "a", attempt, None, [StoredItem("i", input)], 1)
    assert not database.finish("a", "1", StoredOutput("completed", b"of the first", [StoredItem("o", b"3")]))
    database.forget("a", "1")
    assert database.body("ann", "a") is None
    assert database.finish("a", "2", StoredOutput("completed", b"of the second", [StoredItem("o", b"4")]))
    database.forget("a", "1")
    assert database.body("ann", "a") == b"of the second"
    assert database.chain_items("ann", "a", 9) == [b"2", b"4"]


def test_a_chain_has_the_items_of_all_in_order(open_database: Open) -> None:
    database = open_database()
    for id, previous in (("a", None), ("b", "a"), ("c", "b"), ("other", "a")):
        assert store(database, id, previous)
    items = [item.decode() for item in database.chain_items("ann", "c", 9)]
    assert items == ["a-in", "a-out", "b-in", "b-out", "c-in", "c-out"]
    size = database.chain_size("ann", "c", 9)
    assert size is not None
    assert size.nbytes > size.text_nbytes > 0


def test_a_chain_with_a_gap_is_not_found(open_database: Open) -> None:
    database = open_database()
    store(database, "a")
    store(database, "b", "a")
    assert isinstance(database.chain_size("ann", "b", 9), ChainSize)
    database.delete("ann", "a")
    assert database.chain_size("ann", "b", 9) is None
    assert database.body("ann", "b") == b"body b"


def test_a_response_that_continues_one_of_another_owner_is_not_found(open_database: Open) -> None:
    database = open_database()
    store(database, "a", owner="bob")
    store(database, "b", "a")
    assert database.chain_size("ann", "b", 9) is None


def test_the_least_recently_used_makes_room(open_database: Open) -> None:
    database = open_database(limit_nbytes=6000)
    for id in ("a", "b"):
        assert store(database, id, size=1000)
    assert database.body("ann", "a") is not None  # a use
    assert store(database, "c", size=1000)
    assert [database.body("ann", id) is not None for id in ("a", "b", "c")] == [True, False, True]
    assert not store(database, "d", size=9000)
    assert [database.body("ann", id) is not None for id in ("a", "c", "d")] == [True, True, False]


def test_continuing_a_response_is_a_use_of_all_before_it(open_database: Open) -> None:
    database = open_database(limit_nbytes=9000)
    store(database, "a", size=1000)
    store(database, "b", "a", size=1000)
    store(database, "x", size=1000)
    assert database.chain_size("ann", "b", 9) is not None
    assert store(database, "c", size=1000)
    assert database.body("ann", "x") is None
    assert database.chain_size("ann", "b", 9) is not None


def test_what_has_outlived_its_time_is_gone(open_database: Open) -> None:
    database = open_database(ttl_s=50)
    store(database, "a")
    CLOCK[0] += 100
    assert database.size("ann", "a") is None
    assert database.chain_size("ann", "a", 9) is None


def test_the_input_of_a_response_that_fails_is_dropped(open_database: Open) -> None:
    database = open_database()
    database.begin("ann", "a", "1", None, [StoredItem("i", b"1")], 1)
    store(database, "b")
    database.forget("a", "1")
    database.forget("b", "1")
    assert not database.finish("a", "1", StoredOutput("completed", b"body"))
    assert database.body("ann", "b") is not None


def test_two_users_of_one_file_see_each_others_responses(open_database: Open) -> None:
    one, two = open_database(), open_database()
    store(one, "a")
    store(two, "b", "a")
    assert one.chain_items("ann", "b", 9) == two.chain_items("ann", "b", 9) != []
    assert one.delete("ann", "a") is not None
    assert two.body("ann", "a") is None


def test_an_error_leaves_the_file_usable(open_database: Open) -> None:
    database = open_database(limit_nbytes=100_000)
    store(database, "a")
    with pytest.raises(sqlite3.Error):
        database.begin("ann", "a", "1", None, [StoredItem("i", b"1")], 1)  # there is one already
    assert store(database, "b")
