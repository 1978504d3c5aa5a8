"""Tiles of InternVL equal those of transformers, and so do their counts; native repositories have other settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from mmserve.processors.families.internvl import InternVlProcessor, processor
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

TOKEN = "<IMG_CONTEXT>"
SETTINGS = {"image_processor_type": "GotOcr2ImageProcessor", "crop_to_patches": False, "do_center_crop": None}


def _processor(directory: Path, side: int, **changes: Any) -> InternVlProcessor:
    settings = {**SETTINGS, "size": {"height": side, "width": side}, **changes}
    return processor(
        model_with(directory, settings, image_token=TOKEN, image_size=side, patch_size=14, patches_per_row=4)
    )


def test_tiles_and_text_are_those_of_transformers(tmp_path: Path) -> None:
    ours = _processor(tmp_path, 56)
    for data in [*(png(1, *size) for size in [*SIZES, (1, 4000)]), *unusual_pictures().values()]:
        theirs = reference("GotOcr2ImageProcessorPil", tmp_path, data, crop_to_patches=True)
        views = numbers(ours, data)
        assert np.array_equal(views.values, theirs["pixel_values"])
        rows, columns = views.grids[0, 1:]
        assert len(views.values) == rows * columns + (rows * columns > 1)
    theirs = reference("GotOcr2ImageProcessorPil", tmp_path, png(1, 640, 480), crop_to_patches=True)
    tokens = {"image_token": TOKEN, "start_image_token": "<img>", "end_image_token": "</img>"}
    text = replacement("internvl", "InternVLProcessor", theirs, image_seq_length=4, **tokens)
    expansion = ours.expand(640, 480)
    assert expansion.text.replace(TOKEN, TOKEN * expansion.num_rows) == text


def test_rows_of_known_sizes(tmp_path: Path) -> None:
    ours = _processor(tmp_path, 448)
    rows = [ours.expand(*size).num_rows for size in TABLE_SIZES]
    assert rows == [256 * tiles for tiles in (13, 9, 9, 11, 7, 1)]
    assert ours.max_rows == 256 * 13


def test_a_native_repository_has_its_settings_in_its_config(tmp_path: Path) -> None:
    def native(**config: Any) -> InternVlProcessor:
        (tmp_path / "config.json").write_text(json.dumps({"llm_config": {}, **config}))
        settings = {"crop_size": 448, "feature_extractor_type": "CLIPFeatureExtractor"}
        model = model_with(tmp_path, settings, image_token=TOKEN, image_size=56, patch_size=14, patches_per_row=4)
        return processor(msgspec.structs.replace(model, family="internvl_chat"))

    ours = native(max_dynamic_patch=6)
    assert (ours.placeholder, ours.row_token, ours.max_rows) == ("<image>", TOKEN, 4 * 7)
    values = numbers(ours, png(1, 56, 56)).values
    _processor(tmp_path, 56, image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225])
    assert np.array_equal(values, reference("GotOcr2ImageProcessorPil", tmp_path, png(1, 56, 56))["pixel_values"])
    assert native(dynamic_image_size=False).max_rows == 4
    assert native(use_thumbnail=False).max_rows == 4 * 12
    assert native(use_thumbnail=False).expand(112, 56).num_rows == 4 * 2


def test_the_user_may_limit_the_tiles(tmp_path: Path) -> None:
    settings = {**SETTINGS, "size": {"height": 56, "width": 56}}
    model = model_with(tmp_path, settings, image_size=56, patch_size=14, patches_per_row=4)
    options = {"max_patches": 4}
    limited = processor(msgspec.structs.replace(model, processor_options=options))
    assert limited.max_rows == 4 * 5
    assert limited.settings_digest() != processor(model).settings_digest()


def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for changes, message in (
        ({"size": {"height": 28, "width": 28}}, "tiles of 28"),
        ({"min_patches": 13}, "make no sense"),
        ({"overlap": 3}, "overlap"),
    ):
        with pytest.raises(StartupError, match=message):
            _processor(tmp_path, 56, **changes)
