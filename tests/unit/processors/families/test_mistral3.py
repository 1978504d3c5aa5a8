"""Patches of Mistral Small 3 and Pixtral equal those of transformers; separators end the lines of the text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mmserve.processors.families.mistral3 import Mistral3Processor, processor
from mmserve.runtime.errors import MediaError, StartupError
from tests.fakes.models.image_processors import SIZES, TABLE_SIZES, model_with, reference, unusual_pictures
from tests.fakes.pictures.media import png
from tests.fakes.pictures.tower_inputs import numbers

SETTINGS = {
    "image_processor_type": "PixtralImageProcessorFast",
    "crop_size": None,
    "do_center_crop": None,
    "do_pad": True,
    "patch_size": {"height": 14, "width": 14},
    "size": {"longest_edge": 1540},
}


def _processor(directory: Path, **changes: Any) -> Mistral3Processor:
    settings = {**SETTINGS, **changes}
    return processor(model_with(directory, settings, image_token="[IMG]", patch_size=14, patches_per_row=4))


def test_patches_are_those_of_transformers(tmp_path: Path) -> None:
    ours = _processor(tmp_path)
    for data in [*(png(1, *size) for size in SIZES), *unusual_pictures().values()]:
        theirs = reference("PixtralImageProcessorPil", tmp_path, data, patch_size=28)
        height, width = theirs["image_sizes"][0]
        views = numbers(ours, data)
        assert views.grids.tolist() == [[1, height // 14, width // 14]]
        patches = theirs["pixel_values"][0].reshape(3, height // 14, 14, width // 14, 14).transpose(1, 3, 0, 2, 4)
        assert np.array_equal(views.values, patches.reshape(views.values.shape))


def test_rows_and_prompt_tokens_of_known_sizes(tmp_path: Path) -> None:
    ours = _processor(tmp_path)
    expansions = [ours.expand(*size) for size in TABLE_SIZES]
    rows = [each.num_rows for each in expansions]
    assert rows == [414, 1705, 1705, 8, 550, 64]
    separators = [each.text.count("[IMG_BREAK]") + each.text.count("[IMG_END]") for each in expansions]
    assert [sum(each) for each in zip(rows, separators, strict=True)] == [432, 1736, 1760, 10, 560, 72]
    assert max(rows) <= ours.max_rows == 55 * 55


def test_the_text_has_the_row_token_once_a_line(tmp_path: Path) -> None:
    expansion = _processor(tmp_path).expand(84, 56)
    assert expansion.text == "[IMG][IMG_BREAK][IMG][IMG_END]"
    assert expansion.runs == ((3, (1, 1, 3)),) * 2
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_break_token": "\n", "image_end_token": ">"}))
    assert _processor(tmp_path).expand(84, 56).text == "[IMG]\n[IMG]>"


def test_a_picture_whose_side_would_vanish_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MediaError, match="thin"):
        _processor(tmp_path).views(png(1, 1, 4000))


def test_settings_that_are_not_acted_upon_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="longest_edge"):
        _processor(tmp_path, size={"height": 10})
    with pytest.raises(StartupError, match="sharpen"):
        _processor(tmp_path, sharpen=2)
