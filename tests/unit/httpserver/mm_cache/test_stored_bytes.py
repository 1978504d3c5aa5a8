"""Bytes in the arena, compared with bytes at hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mmserve.httpserver.mm_cache.stored_bytes import differs, put
from mmserve.ipc.arena import Arena
from mmserve.messages.media import Handle
from mmserve.runtime.errors import Unavailable


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(1 << 16)
    yield arena
    arena.close()


PLACE = Handle(7, 64, 5000)


@pytest.mark.parametrize("position", [0, 2500, 4999])
def test_one_other_byte_differs(arena: Arena, position: int) -> None:
    content = bytes(5000)
    put(arena, PLACE, content)
    assert not differs(arena, PLACE, bytes(5000))
    assert differs(arena, PLACE, content[:position] + b"x" + content[position + 1 :])


def test_another_length_differs(arena: Arena) -> None:
    put(arena, PLACE, bytes(5000))
    assert differs(arena, PLACE, bytes(5001))
    assert differs(arena, PLACE, bytes(4999))
    assert differs(arena, PLACE, b"")


def test_bytes_that_are_gone_are_not_compared(arena: Arena) -> None:
    put(arena, PLACE, bytes(5000))
    arena.erase(PLACE)
    assert not differs(arena, PLACE, b"x" * 5000)
    put(arena, Handle(8, 64, 5000), b"y" * 5000)
    assert not differs(arena, PLACE, b"x" * 5000)


def test_a_place_from_before_a_restart_cannot_be_written(arena: Arena) -> None:
    arena.begin_epoch(1 << 61)
    with pytest.raises(Unavailable):
        put(arena, PLACE, bytes(5000))
