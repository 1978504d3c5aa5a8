"""Patches of Qwen2-VL, Qwen2.5-VL and Qwen3-VL equal those of transformers, and so do their counts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmserve.processors.families.qwen_vl import processor
from mmserve.processors.smart_resize import SmartResizeProcessor, most_rows, smart_size
from mmserve.runtime.errors import MediaError, StartupError
from tests.fakes.models.image_processors import (
    SIZES,
    TABLE_SIZES,
    model_with,
    reference,
    replacement,
    unusual_pictures,
)
from tests.fakes.pictures.media import png
from tests.fakes.pictures.tower_inputs import numbers

QWEN2 = {"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 3136, "max_pixels": 1003520, "patch_size": 14}
QWEN3 = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "processor_class": "Qwen3VLProcessor",
    "size": {"shortest_edge": 65536, "longest_edge": 16777216},
    "patch_size": 16,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def _processor(directory: Path, settings: dict[str, Any]) -> SmartResizeProcessor:
    side = settings["patch_size"]
    return processor(model_with(directory, settings, image_token="<|image_pad|>", patch_size=side, patches_per_row=4))


@pytest.mark.parametrize("settings", [QWEN2, QWEN3], ids=["Qwen2-VL", "Qwen3-VL"])
def test_patches_grids_and_text_are_those_of_transformers(tmp_path: Path, settings: dict[str, Any]) -> None:
    ours = _processor(tmp_path, settings)
    pictures = [png(1, *size) for size in SIZES] + list(unusual_pictures().values())
    for data in pictures:
        theirs = reference("Qwen2VLImageProcessorPil", tmp_path, data)
        views = numbers(ours, data)
        assert views.values.dtype == np.float32
        assert views.values.flags.c_contiguous
        assert np.array_equal(views.values, theirs["pixel_values"])
        assert np.array_equal(views.grids, theirs["image_grid_thw"])
    theirs = reference("Qwen2VLImageProcessorPil", tmp_path, pictures[0])
    merging = SimpleNamespace(merge_size=2)
    text = replacement("qwen3_vl", "Qwen3VLProcessor", theirs, image_token="<|image_pad|>", image_processor=merging)
    expansion = ours.expand(*SIZES[0])
    assert text == expansion.text * expansion.num_rows


@pytest.mark.parametrize(
    ("settings", "rows"),
    [(QWEN2, [391, 1222, 1222, 4, 1218, 64]), (QWEN3, [300, 2040, 2040, 70, 1504, 64])],
    ids=["Qwen2.5-VL", "Qwen3-VL"],
)
def test_rows_of_known_sizes(tmp_path: Path, settings: dict[str, Any], rows: list[int]) -> None:
    ours = _processor(tmp_path, settings)
    expansions = [ours.expand(*size) for size in TABLE_SIZES]
    assert [each.num_rows for each in expansions] == rows
    assert all(t * h * w == run.rows for each in expansions for run in each.runs for t, h, w in [run.grid])
    assert max(rows) <= ours.max_rows


def test_a_picture_of_extreme_proportions_is_refused(tmp_path: Path) -> None:
    ours = _processor(tmp_path, QWEN2)
    for call in (lambda: ours.expand(1, 4000), lambda: ours.views(png(1, 1, 4000))):
        with pytest.raises(MediaError, match="200 times"):
            call()


@given(st.integers(1, 5000), st.integers(1, 5000), st.sampled_from([(3136, 1003520), (65536, 16777216), (3136, 3136)]))
def test_no_picture_has_more_rows_than_the_bound(width: int, height: int, area: tuple[int, int]) -> None:
    if max(width, height) <= 200 * min(width, height):
        columns, rows = smart_size(width, height, 28, *area)
        assert 0 < columns * rows // 28**2 <= most_rows(28, *area)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"do_resize": False}, "do_resize"),
        ({"resample": 17}, "resample"),
        ({"max_pixels": 100}, "make no sense"),
        ({"size": {"shortest_edge": 4}, "max_pixels": None}, "longest_edge"),
        ({"do_center_crop": True}, "do_center_crop"),
        ({"patch_size": 16}, "the vision tower takes 14"),
    ],
)
def test_settings_that_are_not_acted_upon_are_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(StartupError, match=message):
        processor(model_with(tmp_path, {**QWEN2, **changes}, patch_size=14, patches_per_row=4))


def test_a_checkpoint_without_settings_is_refused(tmp_path: Path) -> None:
    model = model_with(tmp_path, QWEN2, patch_size=14, patches_per_row=4)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(StartupError, match=r"lacks preprocessor_config\.json"):
        processor(model)


def test_settings_decide_the_digest_and_switched_off_steps_do_not(tmp_path: Path) -> None:
    first = _processor(tmp_path, QWEN2).settings_digest()
    assert _processor(tmp_path, {**QWEN2, "do_pad": False, "data_format": "channels_first"}).settings_digest() == first
    assert _processor(tmp_path, {**QWEN2, "max_pixels": 501760}).settings_digest() != first
