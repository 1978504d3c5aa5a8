"""The arena returns bytes only for the handle with which they were written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.ipc.arena import ALIGNMENT, Arena, StaleHandle, extent_nbytes
from mmserve.messages.media import Handle

NBYTES = 1 << 16


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    arena = Arena.create(NBYTES)
    yield arena
    arena.close()


def put(arena: Arena, handle: Handle, payload: bytes) -> None:
    """Open the extent as the cache server does, and write it."""
    arena.open(handle)
    arena.write(handle, payload)


def test_written_bytes_are_read_back(arena: Arena) -> None:
    handle = Handle(generation=7, offset=128, nbytes=5)
    put(arena, handle, b"hello")
    assert bytes(arena.readable(handle)) == b"hello"


def test_the_view_is_read_only_and_not_a_copy(arena: Arena) -> None:
    handle = Handle(8, 0, 4)
    put(arena, handle, b"abcd")
    view = arena.readable(handle)
    arena.view(handle)[:] = b"wxyz"
    assert bytes(view) == b"wxyz"
    assert view.readonly


def test_an_older_generation_is_stale(arena: Arena) -> None:
    put(arena, Handle(10, 1024, 3), b"new")
    with pytest.raises(StaleHandle):
        arena.readable(Handle(9, 1024, 3))


def test_an_unsealed_extent_is_stale(arena: Arena) -> None:
    handle = Handle(11, 2048, 100)
    arena.open(handle)
    arena.view(handle)[:] = bytes(100)
    with pytest.raises(StaleHandle):
        arena.readable(handle)


def test_reuse_during_a_read_is_detected_by_check(arena: Arena) -> None:
    old, new = Handle(20, 4096, 64), Handle(21, 4096, 40)
    put(arena, old, bytes(64))
    arena.readable(old)
    put(arena, new, bytes(40))
    with pytest.raises(StaleHandle):
        arena.check(old)


@given(
    generation=st.integers(0, 2**63 - 1),
    offset=st.integers(-(2**40), 2**40),
    nbytes=st.integers(-(2**40), 2**40),
)
def test_a_forged_handle_is_stale(arena: Arena, generation: int, offset: int, nbytes: int) -> None:
    with pytest.raises(StaleHandle):
        arena.readable(Handle(generation | (1 << 62), offset, nbytes))


def test_an_arena_is_shared_through_its_descriptor(arena: Arena) -> None:
    handle = Handle(30, 8192, 2)
    other = Arena.attach(os.dup(arena.fd))
    put(arena, handle, b"ok")
    assert bytes(other.readable(handle)) == b"ok"
    other.close()


@given(st.integers(0, 10**9))
def test_extents_are_aligned_and_hold_header_payload_and_trailer(nbytes: int) -> None:
    assert extent_nbytes(nbytes) % ALIGNMENT == 0
    assert extent_nbytes(nbytes) >= ALIGNMENT + nbytes + 8


def test_a_size_beyond_the_physical_memory_is_refused() -> None:
    with pytest.raises(OSError, match=r".+"):
        Arena.create(1 << 60)


def test_an_empty_arena_refuses_every_handle() -> None:
    arena = Arena.create(0)
    assert arena.nbytes == 0
    with pytest.raises(StaleHandle):
        arena.readable(Handle(1, 0, 0))
    arena.close()


@pytest.mark.parametrize("when_used", [False, True])
def test_memory_is_allocated_at_creation_or_when_it_is_used(when_used: bool) -> None:
    arena = Arena.create(8 << 20, when_used=when_used)
    taken = [os.fstat(arena.fd).st_blocks * 512]
    arena._map.write(bytes(8 << 20))
    taken.append(os.fstat(arena.fd).st_blocks * 512)
    arena.close()
    assert (taken[0] >= 8 << 20) is not when_used
    assert taken[1] >= 8 << 20


def _mapped_nbytes() -> int:
    """Bytes of arenas that are in this process's page table."""
    return sum(each.rss for each in psutil.Process().memory_maps() if each.path.startswith("/memfd:mmserve-arena"))


@pytest.mark.skipif(
    tuple(map(int, os.uname().release.split(".")[:2])) < (5, 14),
    reason="map_all does nothing on this kernel",
)
def test_map_all_maps_every_page() -> None:
    arena = Arena.create(8 << 20)
    before = _mapped_nbytes()
    arena.map_all()
    mapped = _mapped_nbytes() - before
    arena.close()
    assert mapped >= 8 << 20


def _free_huge_pages() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("HugePages_Free")), 0)


# Huge pages must be reserved by root, and a test must not change the machine.
@pytest.mark.skipif(
    _free_huge_pages() < 3,
    reason="no huge pages are reserved on this machine",
)
def test_an_arena_of_huge_pages() -> None:
    arena = Arena.create(4 << 20, huge_pages=True)
    other = Arena.attach(os.dup(arena.fd))
    assert arena.nbytes == other.nbytes == (6 << 20) - 8
    handle = Handle(5, (4 << 20) + 64, 1 << 20)
    put(arena, handle, bytes(1 << 20))
    assert bytes(other.readable(handle)) == bytes(1 << 20)
    arena.close()
    other.close()


def test_missing_huge_pages_are_an_error_at_creation() -> None:
    with pytest.raises(OSError, match=r".+"):
        Arena.create((_free_huge_pages() + 8) << 21, huge_pages=True)


def test_an_erased_extent_is_stale_even_where_only_its_middle_is_reused(arena: Arena) -> None:
    old, new = Handle(30, 8192, 1024), Handle(31, 8192 + 256, 100)
    put(arena, old, bytes(1024))
    arena.erase(old)
    put(arena, new, bytes(100))
    with pytest.raises(StaleHandle):
        arena.readable(old)


def test_handles_of_an_earlier_epoch_can_neither_be_read_nor_written() -> None:
    arena = Arena.create(4096)
    arena.begin_epoch(1 << 50)
    old = Handle((1 << 50) + 1, 0, 8)
    put(arena, old, bytes(8))
    arena.begin_epoch(1 << 60)
    for use in (arena.readable, arena.view, lambda handle: arena.write(handle, bytes(8))):
        with pytest.raises(StaleHandle):
            use(old)
    put(arena, Handle((1 << 60) + 1, 0, 8), b"new life")
    arena.close()


def test_all_memory_is_had_at_the_start() -> None:
    """A page that cannot be had later, on first use, would end the process (SIGBUS)."""
    nbytes = 4 << 20
    arena = Arena.create(nbytes)
    assert os.fstat(arena.fd).st_blocks * 512 >= nbytes
    arena.close()
