"""Patches of PaddleOCR-VL equal those of transformers, and so do their counts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mmserve.processors.families.paddleocr_vl import PaddleOcrVlProcessor, processor
from mmserve.runtime.errors import MediaError
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

TOKEN = "<|IMAGE_PLACEHOLDER|>"


def _processor(directory: Path) -> PaddleOcrVlProcessor:
    settings = {"image_processor_type": "PaddleOCRVLImageProcessor", "min_pixels": 384**2, "max_pixels": 1536**2}
    return processor(model_with(directory, settings, image_token=TOKEN, patch_size=14, patches_per_row=4))


def test_patches_grids_and_text_are_those_of_transformers(tmp_path: Path) -> None:
    ours = _processor(tmp_path)
    for data in [*(png(1, *size) for size in [*SIZES, (20, 200), (20, 3900)]), *unusual_pictures().values()]:
        theirs = reference("PaddleOCRVLImageProcessorPil", tmp_path, data)
        views = numbers(ours, data)
        assert np.array_equal(views.values, theirs["pixel_values"].reshape(views.values.shape))
        assert np.array_equal(views.grids, theirs["image_grid_thw"])
    theirs = reference("PaddleOCRVLImageProcessorPil", tmp_path, png(1, *SIZES[0]))
    merging = SimpleNamespace(merge_size=2)
    text = replacement("paddleocr_vl", "PaddleOCRVLProcessor", theirs, image_token=TOKEN, image_processor=merging)
    expansion = ours.expand(*SIZES[0])
    assert text == expansion.text * expansion.num_rows


def test_rows_of_known_sizes(tmp_path: Path) -> None:
    ours = _processor(tmp_path)
    rows = [ours.expand(*size).num_rows for size in TABLE_SIZES]
    assert rows == [391, 2691, 2691, 207, 1926, 196]
    assert max(rows) <= ours.max_rows


def test_a_picture_of_extreme_proportions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="200 times"):
        _processor(tmp_path).expand(10, 9000)
