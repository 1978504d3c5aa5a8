"""Views of Idefics3 and SmolVLM equal those of transformers, bit for bit, and their texts are the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from transformers.models.smolvlm.processing_smolvlm import get_image_prompt_string

from mmserve.processors.families.idefics3 import Idefics3Processor, processor
from mmserve.runtime.errors import StartupError
from tests.fakes.models.image_processors import SIZES, TABLE_SIZES, model_with, reference, unusual_pictures
from tests.fakes.pictures.media import png
from tests.fakes.pictures.tower_inputs import numbers


def _processor(directory: Path, side: int = 56, **changes: Any) -> Idefics3Processor:
    settings = {
        "image_processor_type": "SmolVLMImageProcessor",
        "do_pad": True,
        "resample": 1,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "size": {"longest_edge": 4 * side},
        "max_image_size": {"longest_edge": side},
        **changes,
    }
    return processor(model_with(directory, settings, image_size=side, patch_size=14, patches_per_row=4))


def test_views_are_those_of_transformers(tmp_path: Path) -> None:
    ours = _processor(tmp_path)
    for data in [*(png(1, *size) for size in [*SIZES, (1, 4000)]), *unusual_pictures().values()]:
        theirs = reference("SmolVLMImageProcessorPil", tmp_path, data, do_convert_rgb=True)
        assert np.array_equal(numbers(ours, data).values, theirs["pixel_values"][0])


@pytest.mark.parametrize("changes", [{}, {"do_image_splitting": False}, {"size": {"longest_edge": 111}}], ids=str)
def test_views_and_texts_follow_the_settings(tmp_path: Path, changes: dict[str, Any]) -> None:
    ours = _processor(tmp_path, **changes)
    for size in ((100, 37), (37, 100), (28, 28)):
        theirs = reference("Idefics3ImageProcessorPil", tmp_path, png(1, *size), return_row_col_info=True)
        assert np.array_equal(numbers(ours, png(1, *size)).values, theirs["pixel_values"][0])
        rows, columns = theirs["rows"][0][0], theirs["cols"][0][0]
        text = get_image_prompt_string(rows, columns, 1, "<fake_token_around_image>", "<image>", "<global-img>")
        expansion = ours.expand(*size)
        assert expansion.text == text
        assert len(expansion.runs) == text.count("<image>") == len(numbers(ours, png(1, *size)).values)
        assert expansion.num_rows <= ours.max_rows


def test_rows_of_known_sizes(tmp_path: Path) -> None:
    settings = {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}
    ours = processor(model_with(tmp_path, settings, image_size=512, patch_size=16, patches_per_row=16))
    rows = [ours.expand(*size).num_rows for size in TABLE_SIZES]
    assert rows == [832, 832, 832, 576, 320, 1088]
    assert ours.max_rows == 1088


def test_a_user_may_lower_the_size(tmp_path: Path) -> None:
    settings = {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}}
    model = model_with(tmp_path, settings, image_size=512, patch_size=16, patches_per_row=16)
    ours = processor(msgspec.structs.replace(model, processor_options={"size": {"longest_edge": 1024}}))
    assert ours.max_rows == 5 * 64
    assert ours.settings_digest() != processor(model).settings_digest()


def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for changes, message in (
        ({"max_image_size": {"longest_edge": 28}}, "tiles of 28"),
        ({"size": {"height": 56, "width": 56}}, "size"),
        ({"zoom": 3}, "zoom"),
    ):
        with pytest.raises(StartupError, match=message):
            _processor(tmp_path, **changes)
