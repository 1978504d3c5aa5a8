"""Checkpoints with image settings only, and transformers' image processors with Pillow to compare with."""

from __future__ import annotations

import io
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from PIL import Image, ImageOps

from mmserve.checkpoint.spec import ModelSpec
from mmserve.processors.interface import ImageProcessor
from mmserve.processors.registry import processor_for
from tests.fakes.pictures.media import encoded, model_spec, picture, vision_spec

HALVES = [(490, 406), (272, 336), (100, 40), (100, 100)]
"""Where rounding of halves shows: of rows of 28 pixels, of 32 pixels, of a ratio, and of the area of four tiles."""
SIZES = [(640, 480), (100, 37), (37, 100), (1, 1), (28, 28), (300, 50), *HALVES]
TABLE_SIZES = [(640, 480), (1920, 1080), (1080, 1920), (100, 37), (3000, 500), (224, 224)]

_SQUARE_448 = {"height": 448, "width": 448}
_PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen2_5_vl": ({"min_pixels": 3136, "max_pixels": 1003520}, {"patch_size": 14, "patches_per_row": 4}),
    "qwen3_vl": (
        {"size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16},
        {"patch_size": 16, "patches_per_row": 4},
    ),
    "paddleocr_vl": ({}, {"patch_size": 14, "patches_per_row": 4}),
    "mistral3": ({"size": {"longest_edge": 1540}}, {"patch_size": 14, "patches_per_row": 4}),
    "internvl": ({"size": _SQUARE_448}, {"image_size": 448, "patch_size": 14, "patches_per_row": 4}),
    "gemma3": (
        {"size": {"height": 896, "width": 896}, "do_pan_and_scan": True},
        {"image_size": 896, "patch_size": 14, "patches_per_row": 16},
    ),
    "idefics3": (
        {"size": {"longest_edge": 2048}, "max_image_size": {"longest_edge": 512}},
        {"image_size": 512, "patch_size": 16, "patches_per_row": 16},
    ),
    "llava_next": (
        {"size": 336, "crop_size": 336, "image_grid_pinpoints": _PINPOINTS},
        {"image_size": 336, "patch_size": 14},
    ),
    "llava_onevision": ({}, {"image_size": 384, "patch_size": 14}),
}
"""Settings like those of published checkpoints, and fields of the vision spec."""


def family_processor(family: str, directory: Path) -> ImageProcessor:
    """The processor of one of FAMILIES. Writes its settings into ``directory``."""
    settings, tower = FAMILIES[family]
    model = msgspec.structs.replace(model_with(directory, settings, **tower), family=family)
    processor = processor_for(model)
    assert processor is not None
    return processor


def model_with(
    directory: Path, settings: dict[str, Any], *, image_token: str = "<image>", image_size: int = 28, **tower: Any
) -> ModelSpec:
    """A model whose preprocessor_config.json is ``settings``. ``tower``: fields of its vision spec."""
    (directory / "preprocessor_config.json").write_text(json.dumps(settings))
    spec = model_spec(directory, vision=msgspec.structs.replace(vision_spec(image_size), **tower))
    return msgspec.structs.replace(spec, image_token=image_token)


def unusual_pictures(width: int = 61, height: int = 44) -> dict[str, bytes]:
    """Pictures that are not upright RGB."""
    found = {mode: encoded(picture(width, height, mode)) for mode in ("1", "L", "LA", "P", "RGBA")}
    found["CMYK"] = encoded(picture(width, height, "CMYK"), "TIFF")
    for orientation in range(2, 9):
        turned = Image.Exif()
        turned[0x0112] = orientation
        found[f"orientation {orientation}"] = encoded(picture(width, height), "JPEG", exif=turned)
    return found


def upright(data: bytes) -> Image.Image:
    """What transformers' ``load_image`` makes of a file."""
    return ImageOps.exif_transpose(Image.open(io.BytesIO(data)))


def reference(name: str, directory: Path, data: bytes, **options: Any) -> dict[str, Any]:
    """What transformers' image processor of this name makes of a picture."""
    processor = getattr(import_module("transformers"), name).from_pretrained(directory)
    return dict(processor(upright(data), return_tensors="np", **options))


def replacement(family: str, processor: str, image_inputs: dict[str, Any], **attributes: Any) -> str:
    """The text that a processor class of transformers puts in the place of the first picture.

    The object has no tokenizer, and only these attributes: some of the classes cannot be built without torchvision.
    """
    module = import_module(f"transformers.models.{family}.processing_{family}")
    bare = object.__new__(getattr(module, processor))
    for name, value in attributes.items():
        object.__setattr__(bare, name, value)
    return str(bare.replace_image_token(image_inputs, 0))
