"""Tiles of LLaVA-NeXT and LLaVA-OneVision equal those of transformers, and so do their counts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import transformers
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mmserve.processors.families import llava_next, llava_onevision
from mmserve.processors.families.llava_next import LlavaNextProcessor
from mmserve.runtime.errors import MediaError, StartupError
from tests.fakes.models.image_processors import (
    SIZES,
    TABLE_SIZES,
    family_processor,
    model_with,
    reference,
    replacement,
    unusual_pictures,
    upright,
)
from tests.fakes.pictures.media import png
from tests.fakes.pictures.tower_inputs import numbers

PINPOINTS = [[56, 56], [28, 56], [56, 28], [84, 28], [28, 84]]
"""A large one first: for a small picture a later one has smaller margins."""
NEXT = {
    "image_processor_type": "LlavaNextImageProcessor",
    "aspect_ratio_setting": "anyres",
    "do_pad": True,
    "size": {"shortest_edge": 28},
    "crop_size": {"height": 28, "width": 28},
    "image_grid_pinpoints": PINPOINTS,
}
ONEVISION = {
    "image_processor_type": "LlavaOnevisionImageProcessor",
    "size": {"height": 28, "width": 28},
    "image_grid_pinpoints": [[28 * rows, 28 * columns] for rows in range(1, 5) for columns in range(1, 5)],
}


def _next(directory: Path, **changes: Any) -> LlavaNextProcessor:
    return llava_next.processor(model_with(directory, {**NEXT, **changes}, patch_size=7))


def _onevision(directory: Path, ratio: str = "anyres_max_9") -> LlavaNextProcessor:
    (directory / "config.json").write_text(json.dumps({"vision_aspect_ratio": ratio}))
    return llava_onevision.processor(model_with(directory, ONEVISION, patch_size=7))


def _attributes(name: str, directory: Path) -> dict[str, Any]:
    """Of transformers' processor of this name, for a tower of 4 x 4 features a tile."""
    pinpoints = getattr(transformers, name).from_pretrained(directory).image_grid_pinpoints
    return {
        "image_processor": SimpleNamespace(image_grid_pinpoints=pinpoints),
        "image_token": "<image>",
        "vision_feature_select_strategy": "full",
        "patch_size": 7,
        "num_additional_image_tokens": 0,
        "num_image_tokens": 16,
        "vision_aspect_ratio": "anyres_max_3",
    }


@pytest.mark.parametrize("name", ["LlavaNextImageProcessorPil", "LlavaOnevisionImageProcessorPil"])
def test_tiles_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    ours = _next(tmp_path) if name.startswith("LlavaNext") else _onevision(tmp_path)
    for data in [*(png(1, *size) for size in [*SIZES, (1, 4000)]), *unusual_pictures().values()]:
        views = numbers(ours, data)
        assert np.array_equal(views.values, reference(name, tmp_path, data)["pixel_values"][0])
        assert len(views.values) == 1 + views.grids[0].prod()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[LlavaNextProcessor, Any]]:
    """Our processor, and transformers' text for a size, of each of the two families."""
    families = []
    for family, name in (("llava_next", "LlavaNext"), ("llava_onevision", "LlavaOnevision")):
        directory = tmp_path_factory.mktemp(family)
        ours = _next(directory) if name == "LlavaNext" else _onevision(directory, "anyres_max_3")
        attributes = _attributes(f"{name}ImageProcessorPil", directory)

        def text(
            size: tuple[int, int], family: str = family, name: str = name, attributes: dict[str, Any] = attributes
        ) -> str:
            inputs = {
                "image_sizes": [size[::-1]],
                "pixel_values": np.zeros((1, 1, 3, 28, 28), np.float32),
                "batch_num_images": [1],
            }
            return replacement(family, f"{name}Processor", inputs, **attributes)

        families.append((ours, text))
    return families


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.tuples(st.integers(1, 400), st.integers(1, 400)))
@example(size=(98, 28))
def test_rows_are_those_of_transformers_and_within_the_bound(
    both: list[tuple[LlavaNextProcessor, Any]], size: tuple[int, int]
) -> None:
    """The example: of OneVision, 56 features where the limit is 48, which is not enough to shrink them."""
    for ours, text in both:
        expansion = ours.expand(*size)
        assert expansion.text * expansion.num_rows == text(size)
        assert expansion.num_rows <= ours.max_rows


@pytest.mark.parametrize(
    ("family", "rows", "most"),
    [
        ("llava_next", [2340, 1948, 1968, 1458, 1452, 1176], 2928),
        ("llava_onevision", [2929, 7269, 7317, 981, 5130, 1485], 8831),
    ],
)
def test_rows_of_known_sizes(tmp_path: Path, family: str, rows: list[int], most: int) -> None:
    ours = family_processor(family, tmp_path)
    assert [ours.expand(*size).num_rows for size in TABLE_SIZES] == rows
    assert ours.max_rows == most


def test_one_of_several_pictures_is_one_tile_of_onevision_alone(tmp_path: Path) -> None:
    """As transformers processes the pictures of one chat."""
    (tmp_path / "next").mkdir()
    (tmp_path / "onevision").mkdir()
    pair = _next(tmp_path / "next")
    assert pair.among(2) is pair
    directory = tmp_path / "onevision"
    alone = _onevision(directory)
    assert alone.among(1) is alone
    several = alone.among(2)
    theirs = transformers.LlavaOnevisionImageProcessorPil.from_pretrained(directory)
    files = [*(png(1, *size) for size in [*SIZES, (1, 4000)]), *unusual_pictures().values()]
    for data in files:
        views = numbers(several, data)
        expected = theirs([[upright(data), upright(files[0])]], return_tensors="np")["pixel_values"][0]
        assert np.array_equal(views.values, np.asarray(expected)[:1])
        assert len(views.values) == 1
    assert views.grids.tolist() == [[1, 0, 0]]
    assert several.settings_digest() not in (alone.settings_digest(), pair.settings_digest())
    assert several.settings_digest() == alone.among(3).settings_digest()
    inputs = {"image_sizes": [(480, 640)] * 2, "batch_num_images": [2], "pixel_values": None}
    text = replacement(
        "llava_onevision",
        "LlavaOnevisionProcessor",
        inputs,
        **_attributes("LlavaOnevisionImageProcessorPil", directory),
    )
    expansion = several.expand(640, 480)
    assert expansion.text * expansion.num_rows == text
    assert expansion.num_rows == several.max_rows == 17


def test_a_picture_that_no_square_fits_around_is_refused(tmp_path: Path) -> None:
    several = _onevision(tmp_path).among(2)
    for call in (lambda: several.expand(9000, 10), lambda: several.views(png(1, 9000, 2))):
        with pytest.raises(MediaError, match="long and thin"):
            call()
    assert several.decoded_nbytes(4000, 10, 4 * 4000 * 10) > 4 * 28 * 4000


def test_settings_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for changes, message in (
        ({"crop_size": {"height": 56, "width": 56}}, "the same square"),
        ({"image_grid_pinpoints": [[28, 50]]}, "multiples of 28"),
        ({"image_grid_pinpoints": []}, "is empty"),
        ({"size": 56, "crop_size": 56, "image_grid_pinpoints": [[56, 56]]}, "tiles of 56"),
        ({"zoom": 3}, "zoom"),
    ):
        with pytest.raises(StartupError, match=message):
            _next(tmp_path, **changes)
    with pytest.raises(StartupError, match="vision_aspect_ratio 'square'"):
        _onevision(tmp_path, "square")
