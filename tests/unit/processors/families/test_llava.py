"""LLaVA's pixels equal transformers' CLIP processor, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from mmserve.processors.registry import processor_for
from mmserve.runtime.errors import MediaError, StartupError
from tests.fakes.models.image_processors import unusual_pictures, upright
from tests.fakes.pictures.media import IMAGE_SIZE, llava_processor, model_spec, png, write_preprocessor
from tests.fakes.pictures.tower_inputs import numbers

UNUSUAL = unusual_pictures()
SIZES = [(40, 30), (30, 41), (28, 28), (1, 1), (3, 200), (500, 377), (29, 1000)]


def _reference(directory: Path, data: bytes, family: str = "CLIPImageProcessorPil") -> np.ndarray:
    processor = getattr(transformers, family).from_pretrained(directory)
    return processor(upright(data), return_tensors="np")["pixel_values"][0]


@pytest.mark.parametrize("size", SIZES)
def test_pixels_equal_transformers_at_every_size(tmp_path: Path, size: tuple[int, int]) -> None:
    data = png(1, *size)
    pixels = numbers(llava_processor(write_preprocessor(tmp_path)), data).values[0]
    assert pixels.dtype == np.float32
    assert pixels.shape == (3, IMAGE_SIZE, IMAGE_SIZE)
    assert pixels.flags.c_contiguous
    assert np.array_equal(pixels, _reference(tmp_path, data))


@pytest.mark.parametrize("name", UNUSUAL)
def test_pixels_of_unusual_pictures_equal_transformers(tmp_path: Path, name: str) -> None:
    pixels = numbers(llava_processor(write_preprocessor(tmp_path)), UNUSUAL[name]).values[0]
    assert np.array_equal(pixels, _reference(tmp_path, UNUSUAL[name]))


@pytest.mark.parametrize(
    "changes",
    [
        {"resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
        {"size": {"height": 28, "width": 28}, "do_center_crop": False},
        {"size": {"shortest_edge": 20}},
        {"size": 33, "crop_size": 28},
        {"do_resize": False},
        {"do_normalize": False},
    ],
)
def test_pixels_follow_the_checkpoints_settings(tmp_path: Path, changes: dict[str, Any]) -> None:
    data = png(2, 61, 44)
    pixels = numbers(llava_processor(write_preprocessor(tmp_path, **changes)), data).values[0]
    assert np.array_equal(pixels, _reference(tmp_path, data))


@pytest.mark.parametrize("size", [(61, 44), (44, 62), (30, 30)])
def test_llavas_pad_to_square(tmp_path: Path, size: tuple[int, int]) -> None:
    data = png(3, *size)
    write_preprocessor(tmp_path, do_pad=True, image_processor_type="LlavaImageProcessor")
    pixels = numbers(llava_processor(tmp_path), data).values[0]
    assert np.array_equal(pixels, _reference(tmp_path, data, "LlavaImageProcessorPil"))


def test_settings_are_read_from_processor_config_too(tmp_path: Path) -> None:
    data = png(4)
    expected = numbers(llava_processor(write_preprocessor(tmp_path, resample=2)), data).values[0]
    old = tmp_path / "preprocessor_config.json"
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": json.loads(old.read_text())}))
    old.unlink()
    assert np.array_equal(numbers(llava_processor(tmp_path), data).values[0], expected)


def test_token_count_is_fixed_and_extreme_proportions_are_refused(tmp_path: Path) -> None:
    processor = llava_processor(write_preprocessor(tmp_path))
    for width, height in ((1, 1), (4000, 30)):
        expansion = processor.expand(width, height)
        assert (expansion.text, expansion.num_rows, processor.max_rows) == ("<image>", 4, 4)
    with pytest.raises(MediaError, match="thin"):
        processor.expand(1, 10_000_000)


def test_different_settings_have_different_digests(tmp_path: Path) -> None:
    first = llava_processor(write_preprocessor(tmp_path)).settings_digest()
    assert llava_processor(write_preprocessor(tmp_path)).settings_digest() == first
    assert llava_processor(write_preprocessor(tmp_path, resample=2)).settings_digest() != first


@pytest.mark.parametrize("changes", [{"crop_size": {"height": 30, "width": 30}}, {"size": {"longest_edge": 28}}])
def test_settings_that_do_not_match_the_tower_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(StartupError):
        llava_processor(write_preprocessor(tmp_path, **changes))


def test_the_registry_has_a_processor_for_vision_models_only(tmp_path: Path) -> None:
    write_preprocessor(tmp_path)
    processor = processor_for(model_spec(tmp_path))
    assert processor is not None
    assert processor.max_rows == 4
