"""Which pictures another device than the CPU may make the views of."""

from __future__ import annotations

import pytest
from PIL import Image

from mmserve.processors.pixels import resizing
from mmserve.processors.pixels.view_plan import MAX_WHOLE_NBYTES, Cut, Resizing, ViewPlan
from mmserve.processors.pixels.views import peak_nbytes

SIDE = 1600
"""3 * SIDE ** 2 is less than MAX_WHOLE_NBYTES."""


def plan(size: tuple[int, int], to: tuple[int, int], resample: Image.Resampling = Image.Resampling.BICUBIC) -> ViewPlan:
    return ViewPlan(size, (Resizing(0, to),), (Cut(1),), to, resample)


def test_pictures_of_few_bytes_go_whole_and_larger_ones_if_their_views_are_larger_still() -> None:
    assert 3 * SIDE**2 <= MAX_WHOLE_NBYTES < 12 * SIDE**2
    small, large, larger = (SIDE, SIDE), (2 * SIDE, 2 * SIDE), (3 * SIDE, 3 * SIDE)
    assert plan(small, (28, 28)).can_go_whole
    assert not plan(large, (28, 28)).can_go_whole
    assert plan(large, larger).can_go_whole
    assert not plan(larger, large).can_go_whole


@pytest.mark.parametrize("version", [(11, 0, 0), (12, 3, 0), (13, 0, 0), (14, 0, 0)])
def test_pictures_go_whole_where_the_order_of_pillows_passes_is_known(
    version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resizing, "_PILLOW", version)
    assert plan((300, 300), (28, 28)).can_go_whole
    assert plan((50, 300), (28, 28)).can_go_whole == (version[0] in (11, 13))
    assert plan((2, 300), (1, 299)).can_go_whole == (version[0] == 11), "very long"
    on_square = Resizing(0, (28, 28), canvas=(300, 300))
    padded = ViewPlan((50, 300), (on_square,), (Cut(1),), (28, 28), Image.Resampling.BICUBIC)
    assert padded.can_go_whole, "the canvas is resized, not the picture"


def test_a_small_picture_on_a_large_canvas_does_not_go_whole() -> None:
    on_square = Resizing(0, (28, 28), canvas=(2 * SIDE, 2 * SIDE))
    on_canvas = ViewPlan((2 * SIDE, 9), (on_square,), (Cut(1),), (28, 28), Image.Resampling.BICUBIC)
    assert not on_canvas.can_go_whole


@pytest.mark.parametrize("resample", [Image.Resampling.NEAREST, Image.Resampling.HAMMING])
def test_other_filters_are_pillows(resample: Image.Resampling) -> None:
    assert not plan((300, 300), (28, 28), resample).can_go_whole


def test_memory_counts_the_whole_picture_where_it_is_larger_than_what_resizing_takes() -> None:
    whole = plan((SIDE, SIDE), (28, 28))
    assert peak_nbytes(0, whole, whole=True) >= 3 * SIDE**2
    assert peak_nbytes(0, whole) < 3 * SIDE**2
    narrow = plan((SIDE, SIDE), (SIDE - 100, SIDE - 100))
    assert peak_nbytes(0, narrow, whole=True) == peak_nbytes(0, narrow), "a suspect is resized on the CPU"
    large = plan((2 * SIDE, 2 * SIDE), (28, 28))
    assert peak_nbytes(0, large, whole=True) == peak_nbytes(0, large)
