"""Pixels and texts of large pictures, with settings of published checkpoints, are those of transformers, bit for bit.

The families' own tests use small tiles, many sizes and unusual pictures.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import transformers

from mmserve.processors.interface import ImageProcessor
from mmserve.processors.registry import processor_for
from tests.fakes.models.image_processors import FAMILIES, model_with, reference, replacement
from tests.fakes.pictures.media import encoded, picture
from tests.fakes.pictures.tower_inputs import numbers

SIZES = [(1920, 1080), (1080, 1920), (3000, 500), (224, 224)]
TOKEN = "<image>"
_SQUARE_336 = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
_TILES_OF_448 = {"image_size": 448, "patch_size": 14, "patches_per_row": 4}
_NATIVE_INTERNVL = {
    **FAMILIES["internvl"][0],
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
_PAN_AND_SCAN = {
    "pan_and_scan_min_crop_size": 256,
    "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}
Inputs = dict[str, Any]


class Published(NamedTuple):
    """A family's settings, and what transformers makes of them."""

    settings: dict[str, Any]
    tower: dict[str, Any]
    """Fields of its spec."""
    pixels: str
    """transformers' image processor."""
    text: Callable[[Path, Inputs], str]
    """What its processor puts in the place of a picture."""
    options: dict[str, Any] | None = None
    """Of the call of the image processor."""
    arrange: Callable[[Any], Any] = lambda values: values
    """Its values in the order of ours."""


def _grid_text(family: str, name: str) -> Callable[[Path, Inputs], str]:
    merging = SimpleNamespace(merge_size=2)
    return lambda _, inputs: replacement(family, name, inputs, image_token=TOKEN, image_processor=merging)


def _pixtral_text(side: int) -> Callable[[Path, Inputs], str]:
    """Of the size after resizing, as PixtralProcessor does, whose module needs torchvision. ``side``: of a row."""

    def text(_: Path, inputs: Inputs) -> str:
        height, width = inputs["image_sizes"][0]
        line = TOKEN * (width // side)
        return "[IMG_BREAK]".join([line] * (height // side)) + "[IMG_END]"

    return text


def _internvl_text(_: Path, inputs: Inputs) -> str:
    tokens = {"image_token": TOKEN, "start_image_token": "<img>", "end_image_token": "</img>"}
    return replacement("internvl", "InternVLProcessor", inputs, image_seq_length=256, **tokens)


def _gemma_text(_: Path, inputs: Inputs) -> str:
    sequence = f"\n\n<start_of_image>{TOKEN * 256}<end_of_image>\n\n"
    return replacement("gemma3", "Gemma3Processor", inputs, full_image_sequence=sequence)


def _idefics_text(_: Path, inputs: Inputs) -> str:
    tokens = {"fake_image_token": "<fake_token_around_image>", "global_image_tag": "<global-img>"}
    return replacement("idefics3", "Idefics3Processor", inputs, image_token=TOKEN, image_seq_len=64, **tokens)


def _anyres_text(family: str, name: str, **attributes: Any) -> Callable[[Path, Inputs], str]:
    def text(directory: Path, inputs: Inputs) -> str:
        processor = getattr(transformers, f"{name}ImageProcessorPil").from_pretrained(directory)
        pinpoints = SimpleNamespace(image_grid_pinpoints=processor.image_grid_pinpoints)
        fields = {"image_token": TOKEN, "patch_size": 14, "image_processor": pinpoints, **attributes}
        return replacement(family, f"{name}Processor", inputs, **fields)

    return text


def _llava_text(_: Path, inputs: Inputs) -> str:
    fields = {"patch_size": 14, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
    return replacement("llava", "LlavaProcessor", inputs, image_token=TOKEN, **fields)


def _patches_of(side: int) -> Callable[[Any], Any]:
    """Pixels [1, 3, height, width] -> patches line by line."""

    def arrange(pixels: Any) -> Any:
        _, channels, height, width = pixels.shape
        grid = pixels[0].reshape(channels, height // side, side, width // side, side)
        return grid.transpose(1, 3, 0, 2, 4).reshape(-1, channels * side * side)

    return arrange


_first: Callable[[Any], Any] = lambda values: values[0]  # noqa: E731
_QWEN2_TEXT = _grid_text("qwen2_vl", "Qwen2VLProcessor")
PUBLISHED = {
    "qwen2_vl": Published(
        {"min_pixels": 3136, "max_pixels": 12845056},
        FAMILIES["qwen2_5_vl"][1],
        "Qwen2VLImageProcessorPil",
        _QWEN2_TEXT,
    ),
    "qwen2_5_vl": Published(*FAMILIES["qwen2_5_vl"], "Qwen2VLImageProcessorPil", _QWEN2_TEXT),
    "qwen3_vl": Published(
        *FAMILIES["qwen3_vl"], "Qwen2VLImageProcessorPil", _grid_text("qwen3_vl", "Qwen3VLProcessor")
    ),
    "paddleocr_vl": Published(
        *FAMILIES["paddleocr_vl"],
        "PaddleOCRVLImageProcessorPil",
        _grid_text("paddleocr_vl", "PaddleOCRVLProcessor"),
        arrange=lambda values: values.reshape(len(values), -1),
    ),
    "mistral3": Published(
        *FAMILIES["mistral3"], "PixtralImageProcessorPil", _pixtral_text(28), {"patch_size": 28}, _patches_of(14)
    ),
    "pixtral": Published(
        {"size": {"longest_edge": 1024}, "patch_size": {"height": 16, "width": 16}},
        {"patch_size": 16, "patches_per_row": 1},
        "PixtralImageProcessorPil",
        _pixtral_text(16),
        arrange=_patches_of(16),
    ),
    "internvl": Published(*FAMILIES["internvl"], "GotOcr2ImageProcessorPil", _internvl_text, {"crop_to_patches": True}),
    "internvl_chat": Published(
        _NATIVE_INTERNVL, _TILES_OF_448, "GotOcr2ImageProcessorPil", _internvl_text, {"crop_to_patches": True}
    ),
    "gemma3": Published(
        FAMILIES["gemma3"][0] | _PAN_AND_SCAN, FAMILIES["gemma3"][1], "Gemma3ImageProcessorPil", _gemma_text
    ),
    "idefics3": Published(
        *FAMILIES["idefics3"],
        "SmolVLMImageProcessorPil",
        _idefics_text,
        {"return_row_col_info": True},
        arrange=_first,
    ),
    "llava": Published(_SQUARE_336, {"image_size": 336, "patch_size": 14}, "CLIPImageProcessorPil", _llava_text),
    "llava_next": Published(
        *FAMILIES["llava_next"],
        "LlavaNextImageProcessorPil",
        _anyres_text(
            "llava_next", "LlavaNext", num_additional_image_tokens=1, vision_feature_select_strategy="default"
        ),
        arrange=_first,
    ),
    "llava_onevision": Published(
        *FAMILIES["llava_onevision"],
        "LlavaOnevisionImageProcessorPil",
        _anyres_text(
            "llava_onevision",
            "LlavaOnevision",
            num_image_tokens=729,
            vision_feature_select_strategy="full",
            vision_aspect_ratio="anyres_max_9",
        ),
        arrange=_first,
    ),
}


@functools.cache
def jpeg(width: int, height: int) -> bytes:
    return encoded(picture(width, height), "JPEG")


def ours_and_directory(family: str, directory: Path) -> ImageProcessor:
    """Writes the settings into ``directory``."""
    (directory / "config.json").write_text(json.dumps({"vision_aspect_ratio": "anyres_max_9"}))
    published = PUBLISHED[family]
    model = model_with(directory, published.settings, image_token=TOKEN, **published.tower)
    processor = processor_for(msgspec.structs.replace(model, family=family))
    assert processor is not None
    return processor


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("family", PUBLISHED)
def test_pixels_and_texts_are_those_of_transformers(tmp_path: Path, family: str, size: tuple[int, int]) -> None:
    ours, published = ours_and_directory(family, tmp_path), PUBLISHED[family]
    theirs = reference(published.pixels, tmp_path, jpeg(*size), **(published.options or {}))
    assert np.array_equal(numbers(ours, jpeg(*size)).values, published.arrange(np.asarray(theirs["pixel_values"])))
    expansion = ours.expand(*size)
    text, *others = expansion.text.split(ours.row_token)
    for run, other in zip(expansion.runs, others, strict=True):
        text += TOKEN * run.rows + other
    assert text == published.text(tmp_path, theirs)
    assert expansion.num_rows <= ours.max_rows
