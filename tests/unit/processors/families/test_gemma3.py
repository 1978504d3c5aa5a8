"""Views of Gemma 3 equal those of transformers, with and without pan and scan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmserve.processors.families.gemma3 import Gemma3Processor, processor
from mmserve.runtime.errors import StartupError
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

TOKEN = "<image_soft_token>"
PAN_AND_SCAN = {
    "do_pan_and_scan": True,
    "pan_and_scan_min_crop_size": 20,
    "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}


def _processor(directory: Path, side: int = 56, **changes: Any) -> Gemma3Processor:
    settings = {
        "image_processor_type": "Gemma3ImageProcessor",
        "do_convert_rgb": None,
        "do_pan_and_scan": None,
        "image_seq_length": 256,
        "resample": 2,
        "size": {"height": side, "width": side},
        **changes,
    }
    return processor(
        model_with(directory, settings, image_token=TOKEN, image_size=side, patch_size=14, patches_per_row=16)
    )


@pytest.mark.parametrize("changes", [{}, PAN_AND_SCAN], ids=["one view", "pan and scan"])
def test_views_and_text_are_those_of_transformers(tmp_path: Path, changes: dict[str, Any]) -> None:
    ours = _processor(tmp_path, **changes)
    for data in [*(png(1, *size) for size in [*SIZES, (1, 4000)]), *unusual_pictures().values()]:
        theirs = reference("Gemma3ImageProcessorPil", tmp_path, data, do_convert_rgb=True)
        views = numbers(ours, data)
        assert np.array_equal(views.values, theirs["pixel_values"])
        assert len(views.grids) == len(views.values) == 1 + theirs["num_crops"][0]
    sequence = f"\n\n<start_of_image>{TOKEN}<end_of_image>\n\n"
    for size in SIZES:
        theirs = reference("Gemma3ImageProcessorPil", tmp_path, png(1, *size))
        expansion = ours.expand(*size)
        assert expansion.text == replacement("gemma3", "Gemma3Processor", theirs, full_image_sequence=sequence)
        assert expansion.text.count(TOKEN) == len(expansion.runs)
        assert expansion.num_rows <= ours.max_rows


def test_rows_and_crops_of_known_sizes(tmp_path: Path) -> None:
    ours = _processor(tmp_path, 896)
    assert {ours.expand(*size).num_rows for size in TABLE_SIZES} == {ours.max_rows} == {256}
    ours = _processor(tmp_path, 896, do_pan_and_scan=True)
    crops = [len(ours.expand(*size).runs) - 1 for size in TABLE_SIZES]
    assert crops == [2, 2, 2, 0, 4, 0]
    assert ours.max_rows == 5 * 256


def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for changes, message in (
        ({"size": {"height": 56, "width": 28}}, "tiles of 0"),
        ({**PAN_AND_SCAN, "pan_and_scan_min_crop_size": 0}, "at least one pixel"),
        ({"zoom": 3}, "zoom"),
    ):
        with pytest.raises(StartupError, match=message):
            _processor(tmp_path, **changes)
