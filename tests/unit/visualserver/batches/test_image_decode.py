"""Images of a batch are decoded from the arena independently of each other."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from mmserve.cache_server.client import MediaCacheClient
from mmserve.ipc.arena import Arena
from mmserve.messages.cache import EmbedState
from mmserve.messages.media import Handle, Processing
from mmserve.processors.interface import Views
from mmserve.runtime.errors import MediaError, MmserveError, Shortage, Unavailable
from mmserve.visualserver.batches.image_decode import ImageDecoder
from mmserve.visualserver.images import ENCODED, LOST, Image, Outcome
from tests.fakes.pictures.media import one_tile


class _Processor:
    """Views filled with the first byte; the bytes "bad", "deadly" and "bug" raise."""

    def views(self, data: bytes) -> Views:
        if data == b"bad":
            raise MediaError("it is broken")
        if data == b"deadly":
            raise MmserveError("it killed the server three times")
        if data == b"bug":
            raise RuntimeError("ours")
        return one_tile(data[0])


class _Cache:
    """Answers from ``states``; an item reported as failed is gone."""

    def __init__(self, states: dict[int, EmbedState]) -> None:
        self.states = states
        self.failed: list[int] = []
        self.down: Unavailable | None = None

    def get_items_embed(self, item_ids: Sequence[int]) -> tuple[EmbedState, ...]:
        if self.down is not None:
            raise self.down
        return tuple(self.states.get(item_id, "pending") for item_id in item_ids)

    def set_items_embed(self, item_ids: Sequence[int], ok: Sequence[bool]) -> tuple[EmbedState, ...]:
        assert not any(ok)
        self.failed += item_ids
        return tuple(self.states.get(item_id, "gone") for item_id in item_ids)


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(1 << 14)
    yield arena
    arena.close()


def _image(arena: Arena, item_id: int, data: bytes | None) -> Image:
    handle = Handle(item_id, item_id * 256, len(data or b"...."))
    if data is not None:
        arena.open(handle)
        arena.write(handle, data)
    return Image(item_id, handle, handle)


class _Guarded:
    """A decoder without a guard."""

    def __init__(self, processor: _Processor) -> None:
        self._processor = processor

    def views(self, item_id: int, data: bytes, processing: Processing) -> Views:
        return self._processor.views(data)


def _decode(arena: Arena, cache: _Cache, images: list[Image], processor: _Processor | None = None) -> Any:
    with ThreadPoolExecutor(2) as pool:
        decoder = ImageDecoder(
            cast(Any, _Guarded(processor or _Processor())), arena, cast(MediaCacheClient, cache), pool
        )
        return decoder.decode(images)


def test_a_failing_image_does_not_affect_the_others(arena: Arena) -> None:
    images = [_image(arena, n, data) for n, data in enumerate((b"\x05abc", b"bad", b"bug", None, b"\x07", b"deadly"))]
    cache = _Cache({})
    decoded = _decode(arena, cache, images)
    assert [image.item_id for image in decoded.images] == [0, 4]
    assert [each.pixels[0, 0, 0, 0] for each in decoded.views] == [5, 7]
    reasons = {item_id: outcome.state for item_id, outcome in decoded.outcomes.items()}
    assert reasons == {1: "media_error", 2: "internal_error", 3: "media_lost", 5: "internal_error"}
    assert decoded.outcomes[1].message == "it is broken"
    assert "three times" in decoded.outcomes[5].message
    assert sorted(cache.failed) == [1, 2, 3, 5]


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.EMFILE, "Too many open files")], ids=repr)
def test_an_image_for_which_the_machine_lacks_something_is_neither_broken_nor_a_bug(
    arena: Arena, error: Exception
) -> None:
    class Processor(_Processor):
        def views(self, data: bytes) -> Views:
            raise error

    outcome = _decode(arena, _Cache({}), [_image(arena, 1, b"a picture")], Processor()).outcomes[1]
    assert outcome.state == "shortage"
    assert "out of" in outcome.message


def test_bytes_are_read_in_the_arena_without_a_copy(arena: Arena) -> None:
    """The processor gets a read-only view of the arena's memory."""
    seen: list[memoryview] = []
    image = _image(arena, 1, b"\x05abc")

    class Processor(_Processor):
        def views(self, data: memoryview) -> Views:  # type: ignore[override]
            arena.view(image.data)[1:2] = b"\x06"
            seen.append(data)
            return super().views(data[1:])  # type: ignore[arg-type]

    decoded = _decode(arena, _Cache({}), [image], Processor())
    assert [each.pixels[0, 0, 0, 0] for each in decoded.views] == [6]
    assert seen[0].readonly


@pytest.mark.parametrize("ends", ["views", "error", "bug"])
def test_an_image_overwritten_while_it_is_decoded_is_lost(arena: Arena, ends: str) -> None:
    """The pixels, or the error, of the overwritten bytes are discarded."""
    image = _image(arena, 1, b"\x05abc")

    class Processor(_Processor):
        def views(self, data: memoryview) -> Views:  # type: ignore[override]
            reused = Handle(2, image.data.offset, 1)
            arena.open(reused)
            arena.write(reused, b"\x09")
            return super().views({"pixels": b"\x05", "error": b"bad", "bug": b"bug"}[ends])

    cache = _Cache({})
    decoded = _decode(arena, cache, [image], Processor())
    assert decoded.outcomes == {1: LOST}
    assert not decoded.views
    assert cache.failed == [1]


def test_an_image_that_is_ready_or_gone_is_not_decoded(arena: Arena) -> None:
    images = [_image(arena, n, b"bad") for n in (1, 2)]
    decoded = _decode(arena, _Cache({1: "ready", 2: "gone"}), images)
    assert decoded.outcomes == {1: ENCODED, 2: LOST}
    assert decoded.seconds == []


def test_an_image_that_another_server_encoded_meanwhile_counts_as_encoded(arena: Arena) -> None:
    cache = _Cache({})
    images = [_image(arena, 1, None)]
    cache.set_items_embed = lambda item_ids, ok: ("ready",)  # type: ignore[method-assign]
    assert _decode(arena, cache, images).outcomes == {1: ENCODED}


def test_without_a_cache_server_all_images_are_lost(arena: Arena) -> None:
    cache = _Cache({})
    cache.down = Unavailable("down")
    decoded = _decode(arena, cache, [_image(arena, 1, b"\x01"), _image(arena, 2, b"\x02")])
    assert decoded.outcomes == {1: LOST, 2: LOST}
    assert decoded.images == []


def test_without_a_connection_to_the_cache_server_all_requests_are_told_why(arena: Arena) -> None:
    cache = _Cache({})
    cache.down = Shortage("no descriptors")
    decoded = _decode(arena, cache, [_image(arena, 1, b"\x01")])
    assert decoded.outcomes == {1: Outcome("shortage", "no descriptors")}
