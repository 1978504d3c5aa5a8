"""Pictures resized by Triton's kernels, in its interpreter, and by torch: Pillow's bytes, all of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from mmserve.model_backend.pictures.resize import TorchResize
from mmserve.model_backend.platforms.cuda import picture_resize
from mmserve.model_backend.platforms.cuda.picture_resize import TritonResize, working_resize
from mmserve.model_backend.transfers import PlainTransfers
from mmserve.processors.pixels.coefficients import FILTERS
from mmserve.processors.pixels.sources import Size
from tests.unit.model_backend.platforms.cuda.interpreter import needs_interpreter

pytestmark = needs_interpreter
TRANSFERS = PlainTransfers(torch.device("cpu"))
SIZES = {
    "both shorter": ((50, 35), (28, 21)),
    "both longer": ((31, 20), (64, 41)),
    "lines shorter, columns longer": ((60, 10), (7, 30)),
    "lines longer, columns shorter": ((20, 30), (33, 11)),
    "columns shorter by more": ((30, 60), (20, 11)),
    "just so": ((30, 60), (20, 40)),
    "just not": ((30, 60), (20, 39)),
    "one pixel": ((1, 1), (5, 3)),
    "to one pixel": ((40, 20), (1, 1)),
    "long lines": ((4000, 2), (336, 2)),
    "longer lines": ((333, 2), (1008, 2)),
    "nearly as long": ((1537, 2), (1536, 2)),
    "columns alone": ((9, 20), (9, 43)),
    "as it is": ((9, 8), (9, 8)),
}
KERNEL_CASES = [
    (Image.Resampling.LANCZOS, (20, 9), (12, 6)),
    (Image.Resampling.BICUBIC, (7, 6), (13, 11)),
    (Image.Resampling.BILINEAR, (23, 5), (9, 5)),
    (Image.Resampling.BOX, (8, 9), (8, 4)),
    (Image.Resampling.BILINEAR, (6, 9), (9, 5)),
]
"""Few and small: the interpreter takes a millisecond for each tap of a line."""


def noise(width: int, height: int) -> npt.NDArray[np.uint8]:
    """With black and white pixels beside each other, where filters overshoot."""
    values = np.random.default_rng(width).integers(-100, 356, (height, width, 3))
    return values.clip(0, 255).astype(np.uint8)


def resized(picture: npt.NDArray[np.uint8], size: Size, resample: Image.Resampling) -> torch.Tensor:
    """By Pillow."""
    return torch.from_numpy(np.array(Image.fromarray(picture).resize(size, resample)))


@pytest.mark.parametrize("resample", FILTERS, ids=lambda each: each.name)
@pytest.mark.parametrize("case", SIZES)
def test_the_reference_gives_pillows_bytes(case: str, resample: Image.Resampling) -> None:
    size, target = SIZES[case]
    picture = noise(*size)
    found = TorchResize(TRANSFERS)(torch.from_numpy(picture), target, resample)
    assert torch.equal(found, resized(picture, target, resample))


@pytest.mark.parametrize(("resample", "size", "target"), KERNEL_CASES, ids=lambda each: getattr(each, "name", None))
def test_the_kernels_give_pillows_bytes(
    monkeypatch: pytest.MonkeyPatch, resample: Image.Resampling, size: Size, target: Size
) -> None:
    monkeypatch.setattr(picture_resize, "_TILE", 32)  # less than a line
    picture = noise(*size)
    found = TritonResize(TRANSFERS)(torch.from_numpy(picture), target, resample)
    assert torch.equal(found, resized(picture, target, resample))


def test_a_part_of_a_picture_is_resized_in_place() -> None:
    picture, (left, top, right, bottom) = noise(30, 20), (7, 3, 26, 12)
    expected = resized(picture[top:bottom, left:right], (12, 5), Image.Resampling.BICUBIC)
    part = torch.from_numpy(picture)[top:bottom, left:right]
    for resize in (TorchResize(TRANSFERS), TritonResize(TRANSFERS)):
        assert torch.equal(resize(part, (12, 5), Image.Resampling.BICUBIC), expected)


@pytest.fixture
def _short_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_resize, "FILTERS", [Image.Resampling.BILINEAR])
    monkeypatch.setattr(picture_resize, "_TRIALS", ((17, 12),))


@pytest.mark.usefixtures("_short_self_test")
def test_kernels_that_give_pillows_bytes_are_used() -> None:
    assert isinstance(working_resize(TRANSFERS), TritonResize)


@pytest.mark.usefixtures("_short_self_test")
def test_kernels_that_give_other_bytes_are_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = TorchResize._columns
    monkeypatch.setattr(TritonResize, "_columns", lambda *args: right(*args) ^ 1)
    assert working_resize(TRANSFERS) is None
    assert "other bytes" in caplog.text
