"""The encoder runs the tower and writes its rows into the arena."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from mmserve.cache_server.client import MediaCacheClient
from mmserve.ipc.arena import Arena, StaleHandle
from mmserve.messages.cache import EmbedState
from mmserve.messages.media import Handle
from mmserve.model_backend.transfers import PlainTransfers
from mmserve.model_backend.vision.interface import PixelTensors
from mmserve.runtime.errors import Shortage, Unavailable
from mmserve.visualserver.batches import encode
from mmserve.visualserver.batches.encode import HOST, Encoder, EncoderBatch, EncoderDevice
from mmserve.visualserver.batches.image_decode import DecodedBatch
from mmserve.visualserver.batches.work_journal import WorkJournal
from mmserve.visualserver.images import ENCODED, INTERNAL, LOST, NOT_FINITE, Image, Outcome
from tests.fakes.devices.late_device import LateDevice, LateRowCopies, LateTransfers
from tests.fakes.pictures.media import one_tile

TOKENS, HIDDEN = 3, 4


class _Cache:
    def __init__(self, gone: tuple[int, ...] = (), down: Unavailable | None = None) -> None:
        self.calls: list[dict[int, bool]] = []
        self._gone, self._down = gone, down

    def set_items_embed(self, item_ids: Sequence[int], ok: Sequence[bool]) -> tuple[EmbedState, ...]:
        if self._down is not None:
            raise self._down
        self.calls.append(dict(zip(item_ids, ok, strict=True)))
        return tuple(
            "ready" if good and name not in self._gone else "gone" for name, good in zip(item_ids, ok, strict=True)
        )


def _tower(pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
    """Rows filled with the image's first value. Out of memory for more than two images, or for a value of 13."""
    if len(pictures) > 2 or any((picture.pixels == 13).any() for picture in pictures):
        raise torch.OutOfMemoryError("out of memory")
    return [picture.pixels[0, 0, 0, 0].expand(len(picture.pixels) * TOKENS, HIDDEN).float() for picture in pictures]


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena.create(1 << 14)
    yield arena
    arena.close()


def _decoded(*values: int) -> DecodedBatch:
    images = [Image(v, Handle(v, 0, 1), Handle(100 + v, 512 * n, TOKENS * HIDDEN * 2)) for n, v in enumerate(values)]
    return DecodedBatch(images, [one_tile(value) for value in values])


def _journal() -> WorkJournal:
    with tempfile.TemporaryDirectory() as directory:
        return WorkJournal(Path(directory) / "work", 8)


def _encoder(arena: Arena, cache: _Cache) -> Encoder:
    return Encoder(_tower, torch.bfloat16, arena, cast(MediaCacheClient, cache), _journal(), 8)


def _encode(encoder: Encoder, decoded: DecodedBatch) -> dict[int, Outcome]:
    batch = _take(encoder, decoded)
    assert not decoded.views, "moved to the encoder"
    return encoder.encode([batch]).outcomes


def _take(encoder: Encoder, decoded: DecodedBatch) -> EncoderBatch:
    """The batch, with its extents opened as the cache server does."""
    for image in decoded.images:
        encoder._arena.open(image.embed)
    return encoder.take(decoded)


def _rows(arena: Arena, handle: Handle) -> Any:
    return torch.frombuffer(bytearray(arena.readable(handle)), dtype=torch.bfloat16).tolist()


def test_rows_are_written_and_sealed_in_the_deployments_dtype(arena: Arena) -> None:
    cache, decoded = _Cache(), _decoded(5, 6)
    assert _encode(_encoder(arena, cache), decoded) == {5: ENCODED, 6: ENCODED}
    assert [_rows(arena, image.embed) for image in decoded.images] == [[5.0] * 12, [6.0] * 12]
    assert cache.calls == [{5: True, 6: True}]


def test_images_of_different_sizes_share_a_batch(arena: Arena) -> None:
    decoded = _decoded(5, 6)
    large = Handle(106, 512, 3 * TOKENS * HIDDEN * 2)
    decoded.images[1] = Image(6, Handle(6, 0, 1), large)
    decoded.views[1] = one_tile(6, tiles=3)
    assert _encode(_encoder(arena, _Cache()), decoded) == {5: ENCODED, 6: ENCODED}
    assert [_rows(arena, image.embed) for image in decoded.images] == [[5.0] * 12, [6.0] * 36]


def test_rows_that_are_not_as_many_as_announced_fail_alone(arena: Arena) -> None:
    decoded = _decoded(5, 6)
    decoded.views[0] = one_tile(5, tiles=2)
    assert _encode(_encoder(arena, _Cache()), decoded) == {5: INTERNAL, 6: ENCODED}


def test_images_of_a_failed_batch_are_encoded_one_by_one(arena: Arena) -> None:
    cache, decoded = _Cache(), _decoded(5, 13, 7)
    assert _encode(_encoder(arena, cache), decoded) == {5: ENCODED, 13: INTERNAL, 7: ENCODED}
    assert _rows(arena, decoded.images[2].embed) == [7.0] * 12
    assert cache.calls == [{5: True, 13: False, 7: True}]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_that_are_not_finite_are_never_ready(arena: Arena, bad: float, dtype: torch.dtype) -> None:
    """The image at fault fails. It is not sealed, so that no rank can read it; the other image is not affected."""

    def tower(pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        rows = [each.clone() for each in _tower(pictures)]
        rows[0][-1, -1] = bad
        return rows

    cache, decoded = _Cache(), _decoded(5, 6)
    decoded.images = [
        Image(i.item_id, i.data, Handle(1, i.embed.offset, TOKENS * HIDDEN * dtype.itemsize)) for i in decoded.images
    ]
    encoder = Encoder(tower, dtype, arena, cast(MediaCacheClient, cache), _journal(), 8)
    assert _encode(encoder, decoded) == {5: NOT_FINITE, 6: ENCODED}
    assert cache.calls == [{5: False, 6: True}]
    with pytest.raises(StaleHandle):
        arena.readable(decoded.images[0].embed)


def test_rows_too_large_for_the_deployments_dtype_are_not_finite(arena: Arena) -> None:
    cache = cast(MediaCacheClient, _Cache())
    encoder = Encoder(
        lambda pictures: [each * 1e6 for each in _tower(pictures)], torch.float16, arena, cache, _journal(), 8
    )
    assert _encode(encoder, _decoded(5)) == {5: NOT_FINITE}


def test_the_tower_gets_some_images_at_a_time_and_earlier_pixels_are_freed(arena: Arena) -> None:
    calls: list[int] = []
    pixels: list[weakref.ref[torch.Tensor]] = []

    def tower(pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        assert not any(earlier() is not None for earlier in pixels)
        calls.append(len(pictures))
        pixels.extend(weakref.ref(picture.pixels) for picture in pictures)
        return _tower(pictures)

    cache, values = _Cache(), (5, 6, 7, 8, 9)
    encoder = Encoder(tower, torch.bfloat16, arena, cast(MediaCacheClient, cache), _journal(), 2)
    outcomes = encoder.encode([_take(encoder, _decoded(*values))]).outcomes
    assert outcomes == dict.fromkeys(values, ENCODED)
    assert calls == [2, 2, 1]
    assert cache.calls == [dict.fromkeys(values, True)]


def test_a_lost_device_ends_the_process(arena: Arena) -> None:
    """Every later call of the device would fail as well."""

    def broken(pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    encoder = Encoder(broken, torch.bfloat16, arena, cast(MediaCacheClient, _Cache()), _journal(), 8)
    for values in ((5,), (5, 6)):
        with pytest.raises(torch.AcceleratorError):
            _encode(encoder, _decoded(*values))


def test_written_bytes_count_each_encoded_row_once(arena: Arena) -> None:
    encoder, decoded = _encoder(arena, _Cache()), _decoded(5, 13, 7)
    assert encoder.encode([_take(encoder, decoded)]).written_nbytes == 2 * TOKENS * HIDDEN * 2


def test_an_embedding_that_the_cache_server_does_not_accept_is_lost(arena: Arena) -> None:
    assert _encode(_encoder(arena, _Cache(gone=(5,))), _decoded(5, 6)) == {5: LOST, 6: ENCODED}
    assert _encode(_encoder(arena, _Cache(down=Unavailable("down"))), _decoded(5, 6)) == {5: LOST, 6: LOST}


def test_without_a_connection_to_the_cache_server_requests_are_told_why(arena: Arena) -> None:
    cache = _Cache(down=Shortage("no descriptors"))
    assert _encode(_encoder(arena, cache), _decoded(5)) == {5: Outcome("shortage", "no descriptors")}


def test_rows_for_a_handle_from_before_a_cache_server_restart_are_lost(arena: Arena) -> None:
    arena.begin_epoch(1 << 60)
    assert _encode(_encoder(arena, _Cache()), _decoded(5)) == {5: LOST}


def test_an_image_that_ends_the_device_is_found_among_those_of_its_batch(arena: Arena, tmp_path: Path) -> None:
    """Each start of the server encodes suspects alone. The one that ends it each time is entered three times."""

    def tower(pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        if any((picture.pixels == 6).any() for picture in pictures):
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
        return _tower(pictures)

    for deaths in ({}, {5: 1, 6: 1}, {6: 2}):
        journal = WorkJournal(tmp_path / "work", 8)
        assert journal.suspects == deaths
        encoder = Encoder(tower, torch.bfloat16, arena, cast(MediaCacheClient, _Cache()), journal, 8)
        with pytest.raises(torch.AcceleratorError):
            _encode(encoder, _decoded(5, 6))
    assert WorkJournal(tmp_path / "work", 8).suspects == {6: 3}


def test_memory_that_runs_out_costs_a_retry_in_smaller_calls_and_no_image(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later calls have as many images as have fitted. The failed call's intermediate results are free before that."""
    monkeypatch.setattr(encode.logger, "exception", lambda *_: None)  # pytest keeps what is logged, with its frames
    calls: list[int] = []
    kept: list[weakref.ref[torch.Tensor]] = []

    def tower(pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        calls.append(len(pictures))
        assert not any(each() is not None for each in kept)
        intermediate = torch.zeros(1)
        kept.append(weakref.ref(intermediate))
        return [rows + intermediate for rows in _tower(pictures)]

    released: list[int] = []
    device = HOST._replace(release_memory=lambda: released.append(len(calls)))
    encoder = Encoder(tower, torch.bfloat16, arena, cast(MediaCacheClient, _Cache()), _journal(), 8, device)
    for _ in range(2):
        assert set(_encode(encoder, _decoded(1, 2, 3, 4, 5)).values()) == {ENCODED}
    assert calls == [5, 2, 2, 1, 2, 2, 1]
    assert released == [1]


def test_memory_that_runs_out_beside_other_pictures_of_a_late_device_fails_one_that_is_too_large_alone(
    arena: Arena,
) -> None:
    """What was launched before the error computes nothing that anybody reads."""
    device, calls = LateDevice(), list[list[int]]()
    late = EncoderDevice(lambda: None, LateTransfers(device), LateRowCopies(device))

    def tower(pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        values = [int(picture.pixels[0, 0, 0, 0]) for picture in pictures]
        calls.append(values)
        rows = [late.transfers.to_device(torch.full((TOKENS, HIDDEN), float(value))).mul(2) for value in values]
        if len(values) > 2 or 13 in values:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return rows

    with device:
        device.loading = False
        encoder = Encoder(tower, torch.bfloat16, arena, cast(MediaCacheClient, _Cache()), _journal(), 8, late)
        decoded = _decoded(5, 6, 13, 7)
        assert _encode(encoder, decoded) == {5: ENCODED, 6: ENCODED, 13: INTERNAL, 7: ENCODED}
    assert calls == [[5, 6, 13, 7], [5, 6], [13, 7], [13], [13], [7]]
    assert [_rows(arena, image.embed)[0] for image in decoded.images if image.item_id != 13] == [10.0, 12.0, 14.0]


def test_rows_of_a_late_device_are_copied_while_their_extents_are_locked(arena: Arena) -> None:
    """All at a time, once the tower has computed them; an extent is sealed when its copy is over."""
    decoded, device = _decoded(5, 6), LateDevice()
    copies = _Watched(device, arena, [image.embed for image in decoded.images])
    late = EncoderDevice(lambda: None, LateTransfers(device), copies)

    def tower(pictures: Sequence[PixelTensors]) -> list[torch.Tensor]:
        return [late.transfers.to_device(rows).mul(2) for rows in _tower(pictures)]

    with device:
        device.loading = False
        encoder = Encoder(tower, torch.bfloat16, arena, cast(MediaCacheClient, _Cache()), _journal(), 8, late)
        assert _encode(encoder, decoded) == {5: ENCODED, 6: ENCODED}
    copies.close()
    assert copies.locked == [[True, True]]
    assert [_rows(arena, image.embed) for image in decoded.images] == [[10.0] * 12, [12.0] * 12]


def test_a_copy_that_fails_is_over_before_its_extent_is_free_and_unsealed(arena: Arena) -> None:
    decoded, device = _decoded(5), LateDevice()
    copies = _Watched(device, arena, [decoded.images[0].embed], fails=True)
    encoder = Encoder(
        _tower,
        torch.bfloat16,
        arena,
        cast(MediaCacheClient, _Cache()),
        _journal(),
        8,
        EncoderDevice(lambda: None, PlainTransfers(torch.device("cpu")), copies),
    )
    assert _encode(encoder, decoded) == {5: INTERNAL}
    copies.close()
    assert copies.locked == [[True], [True]], "together with others, and alone"
    assert not copies._under_way
    with pytest.raises(StaleHandle):
        arena.readable(decoded.images[0].embed)


class _Watched(LateRowCopies):
    """Notes which extents are locked when the copies are waited for. ``fails``: after a copy has begun."""

    def __init__(self, device: LateDevice, arena: Arena, handles: Sequence[Handle], *, fails: bool = False) -> None:
        super().__init__(device)
        self._other, self._handles, self._fails = Arena.attach(os.dup(arena.fd)), handles, fails
        self.locked: list[list[bool]] = []

    def close(self) -> None:
        self._other.close()

    def write(self, rows: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().write(rows)
        if self._fails:
            raise RuntimeError("out of luck")

    def wait(self) -> None:
        self.locked.append([self._other.is_being_written(handle) for handle in self._handles])
        super().wait()
