"""Every family that sees pictures: its tiny random checkpoint, and what transformers' ``generate`` takes for a chat."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import transformers
from PIL import Image

from tests.fakes.models import vision_model
from tests.fakes.models.checkpoints import make_llava
from tests.fakes.models.idefics3 import make_idefics3, make_smolvlm
from tests.fakes.models.qwen_vl import CONFIGS, make_qwen_vl, processed_qwen_vl
from tests.fakes.models.vision_checkpoints import FAMILIES, make_vision
from tests.fakes.models.whole_processors import whole_processor

Processed = Callable[[Path, list[dict[str, Any]], list[Image.Image]], dict[str, Any]]
"""(checkpoint, messages, images) -> what ``generate`` takes."""


class PictureFamily(NamedTuple):
    make: Callable[[Path], Path]
    """Writes the checkpoint into a directory, which it returns."""
    processed: Processed


def by_its_processor(directory: Path, chat: list[dict[str, Any]], images: list[Image.Image]) -> dict[str, Any]:
    """See ``Processed``. For families whose processor needs no package that is missing."""
    return _processed(transformers.AutoProcessor.from_pretrained(directory, use_fast=False), chat, images)


def as_smolvlm(directory: Path, chat: list[dict[str, Any]], images: list[Image.Image]) -> dict[str, Any]:
    """See ``Processed``. By SmolVLM's processor, built without the packages for videos."""
    return _processed(whole_processor(directory, "smolvlm"), chat, images)


def _processed(processor: Any, chat: list[dict[str, Any]], images: list[Image.Image]) -> dict[str, Any]:
    text = processor.apply_chat_template(chat, add_generation_prompt=True)
    return dict(processor(text=text, images=images or None, add_special_tokens=False, return_tensors="pt"))


def make_gemma3(directory: Path) -> Path:
    """With pan and scan: a large picture becomes several, with text between them."""
    settings = make_vision(directory, "gemma3") / "preprocessor_config.json"
    settings.write_text(
        json.dumps(json.loads(settings.read_text()) | {"do_pan_and_scan": True, "pan_and_scan_max_num_crops": 2})
    )
    return directory


PICTURE_FAMILIES = {
    "llava": PictureFamily(make_llava, by_its_processor),
    "idefics3": PictureFamily(make_idefics3, by_its_processor),
    "smolvlm": PictureFamily(make_smolvlm, as_smolvlm),
    **{
        name: PictureFamily(partial(make_qwen_vl, family=name), partial(processed_qwen_vl, family=name))
        for name in CONFIGS
    },
    **{
        name: PictureFamily(partial(make_vision, family=name), partial(vision_model.processed, family=name))
        for name in FAMILIES
    },
    "gemma3": PictureFamily(make_gemma3, partial(vision_model.processed, family="gemma3")),
}
"""By ``model_type``; Pixtral-12B's is ``llava``, and here ``pixtral``."""
QUANTIZABLE: dict[str, Callable[[Path], Path]] = {name: family.make for name, family in PICTURE_FAMILIES.items()} | {
    "qwen3_vl_moe": partial(make_qwen_vl, family="qwen3_vl_moe", text={"moe_intermediate_size": 128})
}
"""The same in shapes that all formats of weights have: experts with a multiple of 32 inputs on each of two ranks."""
