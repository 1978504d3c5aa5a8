"""Views that a tower's device makes of whole pictures: the numbers of those that Pillow makes, and as many rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mmserve.checkpoint.load import load
from mmserve.model_backend.loader.load import load_tower
from mmserve.model_backend.pictures.resize import TorchResize
from mmserve.model_backend.platforms.device import platform_for
from mmserve.model_backend.transfers import PlainTransfers
from mmserve.model_backend.vision.interface import PixelTensors, ViewTensors
from mmserve.model_backend.vision.pixels import PixelInputs
from mmserve.processors.interface import ImageProcessor, Views
from mmserve.processors.pixels import view_plan
from mmserve.processors.registry import processor_for
from mmserve.visualserver.batches.pace import Pace
from mmserve.visualserver.batches.slices import Slices
from mmserve.visualserver.batches.towers import computing_rows
from tests.fakes.devices.late_device import LateDevice, LateTransfers
from tests.fakes.models.image_processors import FAMILIES, family_processor, unusual_pictures
from tests.fakes.models.picture_families import PICTURE_FAMILIES
from tests.fakes.pictures.media import llava_processor, png, write_preprocessor
from tests.fakes.pictures.tower_inputs import read_by_tower

HOST = PlainTransfers(torch.device("cpu"))
UNUSUAL = unusual_pictures()
WITH_ROWS = ("llava", "qwen2_5_vl", "internvl", "idefics3")


@pytest.fixture
def device() -> Iterator[LateDevice]:
    with LateDevice() as device:
        yield device


def of_whole(processor: ImageProcessor, pictures: list[Views]) -> list[ViewTensors]:
    """What a tower reads whose device makes the views."""
    inputs = PixelInputs(processor.form, HOST, torch.float32, TorchResize(HOST))
    return inputs([PixelTensors.of(each) for each in pictures])


def whole(processor: ImageProcessor, data: bytes) -> Views:
    views = processor.views(data, whole=True)
    assert views.plan is not None
    assert views.pixels.shape[1:] == (views.plan.size[1], views.plan.size[0], 3)
    return views


def assert_same(found: list[ViewTensors], expected: list[ViewTensors]) -> None:
    for ours, pillows in zip(found, expected, strict=True):
        assert torch.equal(ours.values, pillows.values)
        assert torch.equal(ours.grids, pillows.grids)


@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_are_those_of_views_by_pillow(family: str, tmp_path: Path) -> None:
    alone = family_processor(family, tmp_path)
    for processor in {alone, alone.among(2)}:
        data = png(3, 310, 205)
        assert_same(of_whole(processor, [whole(processor, data)]), read_by_tower(processor, [processor.views(data)]))


@pytest.mark.parametrize(
    "settings", [{}, {"do_center_crop": False, "size": {"height": 28, "width": 28}}, {"do_pad": True}]
)
def test_squares_of_llava(settings: dict[str, object], tmp_path: Path) -> None:
    """Cropped, squeezed, and on a square of the mean colour."""
    kind = {"image_processor_type": "LlavaImageProcessor"} if "do_pad" in settings else {}
    processor = llava_processor(write_preprocessor(tmp_path, **settings, **kind))
    pictures = [png(1, 61, 44), png(2, 30, 43), png(3, 28, 28), *UNUSUAL.values()]
    expected = read_by_tower(processor, [processor.views(each) for each in pictures])
    assert_same(of_whole(processor, [whole(processor, each) for each in pictures]), expected)


def test_pictures_that_pillow_resizes_keep_their_place_beside_whole_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_plan, "MAX_WHOLE_NBYTES", 10_000)
    processor = llava_processor(write_preprocessor(tmp_path))
    large, small = png(1, 100, 75), png(2, 61, 44)
    pictures = [processor.views(each, whole=True) for each in (large, small, large)]
    assert [each.plan is not None for each in pictures] == [False, True, False]
    expected = read_by_tower(processor, [processor.views(each) for each in (large, small, large)])
    assert_same(of_whole(processor, pictures), expected)
    assert [PixelTensors.of(each).nbytes for each in pictures] == [3 * 28 * 28] * 3, "of the views"


def test_a_device_gets_a_picture_once_and_is_not_waited_for(tmp_path: Path, device: LateDevice) -> None:
    sent: list[tuple[int, ...]] = []

    class Recording(LateTransfers):
        def to_device(self, values: torch.Tensor) -> torch.Tensor:
            sent.append(tuple(values.shape))
            return super().to_device(values)

    processor, transfers = llava_processor(write_preprocessor(tmp_path)), Recording(device)
    pictures = [whole(processor, png(seed, 61, 44)) for seed in range(2)]
    inputs = PixelInputs(processor.form, transfers, torch.bfloat16, TorchResize(transfers))
    device.loading = False
    found = [transfers.to_host(each.values) for each in inputs([PixelTensors.of(each) for each in pictures])]
    assert not device.num_waits
    assert sent.count((44, 61, 3)) == len(pictures)
    assert len(sent) == len(pictures) + 4, "coefficients once for both"
    for late, here in zip(found, of_whole(processor, pictures), strict=True):
        assert torch.equal(late.wait(), here.values.bfloat16())


@pytest.mark.parametrize("family", WITH_ROWS)
def test_rows_are_those_of_views_by_pillow(family: str, tmp_path: Path) -> None:
    model, platform = load(PICTURE_FAMILIES[family].make(tmp_path)), platform_for("cpu", "float32")
    tower, processor = load_tower(model, platform, lambda done, total, unit: None), processor_for(model)
    assert processor is not None
    data = [png(1, 100, 60), png(2, 61, 44)]
    rows_of = computing_rows(tower, processor.form, platform, resize=TorchResize(platform.transfers()))
    found = rows_of([PixelTensors.of(whole(processor, each)) for each in data])
    expected = tower(read_by_tower(processor, [processor.views(each) for each in data]))
    for ours, pillows in zip(found, expected, strict=True):
        assert torch.equal(ours, pillows)


def test_a_tower_on_a_ranks_card_can_rest_behind_each_picture_that_the_card_makes(tmp_path: Path) -> None:
    model, platform = load(PICTURE_FAMILIES["llava"].make(tmp_path)), platform_for("cpu", "float32")
    tower, processor = load_tower(model, platform, lambda done, total, unit: None), processor_for(model)
    assert processor is not None
    slices = Slices(tower, Pace(0.3), lambda: None, lambda: None)
    rows_of = computing_rows(tower, processor.form, platform, slices, TorchResize(platform.transfers()))
    data, stops = [png(1, 100, 60), png(2, 61, 44)], []
    for views in ([processor.views(each) for each in data], [whole(processor, each) for each in data]):
        before = slices.num_layers
        rows_of([PixelTensors.of(each) for each in views])
        stops.append(slices.num_layers - before)
    assert stops[1] == stops[0] + len(data)
