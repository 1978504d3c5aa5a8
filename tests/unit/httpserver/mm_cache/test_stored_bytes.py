"""Writing image bytes into the arena, and comparing stored bytes with others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mmserve.httpserver.mm_cache.stored_bytes import differs, write
from mmserve.ipc.arena import Arena
from mmserve.messages.media import Handle
from mmserve.runtime.errors import Unavailable


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(1 << 16)
    arena.open(HANDLE)
    yield arena
    arena.close()


HANDLE = Handle(7, 64, 5000)


@pytest.mark.parametrize("position", [0, 2500, 4999])
def test_one_changed_byte_is_found(arena: Arena, position: int) -> None:
    content = bytes(5000)
    write(arena, HANDLE, content)
    assert not differs(arena, HANDLE, bytes(5000))
    assert differs(arena, HANDLE, content[:position] + b"x" + content[position + 1 :])


def test_another_length_is_found(arena: Arena) -> None:
    write(arena, HANDLE, bytes(5000))
    assert differs(arena, HANDLE, bytes(5001))
    assert differs(arena, HANDLE, bytes(4999))
    assert differs(arena, HANDLE, b"")


def test_evicted_bytes_are_not_compared(arena: Arena) -> None:
    write(arena, HANDLE, bytes(5000))
    arena.erase(HANDLE)
    assert not differs(arena, HANDLE, b"x" * 5000)
    arena.open(Handle(8, 64, 5000))
    write(arena, Handle(8, 64, 5000), b"y" * 5000)
    assert not differs(arena, HANDLE, b"x" * 5000)


def test_a_handle_from_before_a_restart_cannot_be_written(arena: Arena) -> None:
    arena.begin_epoch(1 << 61)
    with pytest.raises(Unavailable):
        write(arena, HANDLE, bytes(5000))
