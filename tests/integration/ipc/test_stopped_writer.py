"""A writer that is stopped between its check and its copy: its bytes never reach an extent that belongs to others."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest

from mmserve.cache_server.entries import Lease
from mmserve.cache_server.run import new_table
from mmserve.cache_server.table import MediaTable
from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.messages.cache import MediaRecord
from mmserve.messages.media import Handle
from tests.fakes.pictures.cache import alloc_item, arena_for

ROUNDS = 12
NUM_ITEMS = 6

WRITER = """
import os, signal, sys
import msgspec
from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.messages.media import Handle
arena = Arena.attach(int(sys.argv[1]))
for line in sys.stdin:
    where, handle = msgspec.json.decode(line, type=tuple[str, Handle])
    stop = lambda: os.kill(os.getpid(), signal.SIGSTOP)
    if where == "before the check":
        stop()
    try:
        with arena.writing(handle) as payload:
            if where == "after the check":
                stop()
            payload[: handle.nbytes // 2] = b"X" * (handle.nbytes // 2)
            if where == "in the copy":
                stop()
            payload[:] = b"X" * handle.nbytes
        print("written", flush=True)
    except StaleHandle:
        print("stale", flush=True)
"""


class StoppedWriter:
    """A process that writes what it is told, and stops itself on the way."""

    def __init__(self, arena: Arena) -> None:
        fd = os.dup(arena.fd)
        self._process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(fd)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[fd],
        )
        os.close(fd)

    def write(self, handle: Handle, where: str) -> None:
        """Returns when it has stopped."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode((where, handle)).decode() + "\n")
        self._process.stdin.flush()
        _, status = os.waitpid(self._process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def go_on(self) -> str:
        """Its report, when it is done."""
        assert self._process.stdout is not None
        os.kill(self._process.pid, signal.SIGCONT)
        return self._process.stdout.readline().strip()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def arena() -> Iterator[Arena]:
    with contextlib.closing(arena_for(NUM_ITEMS)) as arena:
        yield arena


@pytest.fixture
def writer(arena: Arena) -> Iterator[StoppedWriter]:
    writer = StoppedWriter(arena)
    yield writer
    writer.kill()


def _fill(arena: Arena, table: MediaTable, owner: str) -> list[MediaRecord]:
    """Write and encode as many images as there is room for; their rows and bytes are their names."""
    written = []
    for number in range(2 * NUM_ITEMS):
        reply = table.alloc(Lease(owner, f"r{number}"), [alloc_item(f"{owner} {number}")])
        for record in reply.records:
            assert record.data is not None
            for handle in (record.data, record.embed):
                arena.write(handle, _content(handle))
            written.append(record)
    return written


def _content(handle: Handle) -> bytes:
    return f"{handle.generation}".encode().ljust(handle.nbytes, b".")


def _check(arena: Arena, records: list[MediaRecord]) -> None:
    for record in records:
        for handle in (record.data, record.embed):
            assert handle is not None
            assert bytes(arena.readable(handle)) == _content(handle)


def test_what_a_stopped_writer_may_still_write_is_given_to_nobody(arena: Arena, writer: StoppedWriter) -> None:
    """The cache server restarts, or ends the leases of the silent process, at every point of the write, again and
    again; meanwhile others fill the arena."""
    rng = random.Random(7)
    table = new_table(arena)
    for number in range(ROUNDS):
        where = rng.choice(("before the check", "after the check", "in the copy"))
        stopped = Lease("stopped", str(number))
        items = [alloc_item(f"{number} {n}") for n in range(rng.randrange(1, NUM_ITEMS))]
        record = rng.choice(table.alloc(stopped, items).records)
        assert record.data is not None
        handle = rng.choice((record.data, record.embed))
        if handle is record.embed:
            table.set_data(stopped, [record.item_id], True)
            table.get_embed("stopped", [record.item_id])
        writer.write(handle, where)
        if rng.random() < 0.5:
            table = new_table(arena)
        else:
            table.drop_owner("stopped", may_live=True)
        others = _fill(arena, table, f"others {number}")
        # In fragments of the arena there may be room for fewer, but only the stopped one's extent is kept from others.
        assert len(others) >= (NUM_ITEMS if where == "before the check" else NUM_ITEMS - 2)
        assert writer.go_on() == ("stale" if where == "before the check" else "written")
        _check(arena, others)
        assert table.free_written() == (where != "before the check")
        table.drop_owner(f"others {number}", may_live=False)
        assert table.num_leases == 0


def test_the_extent_of_a_killed_writer_is_free_at_once(arena: Arena, writer: StoppedWriter) -> None:
    table = new_table(arena)
    (record,) = table.alloc(Lease("stopped", "r"), [alloc_item("cat")]).records
    assert record.data is not None
    writer.write(record.data, "in the copy")
    table = new_table(arena)
    assert table.num_leases == 1
    writer.kill()
    assert table.free_written()
    assert len(_fill(arena, table, "others")) == NUM_ITEMS


def test_a_handle_that_was_not_given_for_writing_cannot_be_written(arena: Arena) -> None:
    table = new_table(arena)
    (record,) = table.alloc(Lease("http", "r"), [alloc_item("cat")]).records
    assert record.data is not None
    forged = Handle(record.data.generation + 1000, record.data.offset, record.data.nbytes)
    with pytest.raises(StaleHandle):
        arena.write(forged, bytes(forged.nbytes))
    table.release(Lease("http", "r"))
    with pytest.raises(StaleHandle):
        arena.write(record.data, bytes(record.data.nbytes))
