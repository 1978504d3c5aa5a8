"""transformers' whole processors of tiny checkpoints: chat template, tokenizer and image processor in one call.

They are the classes of transformers, built without torchvision and num2words, which only videos need.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import tokenizers
import transformers
from PIL import Image

from tests.fakes.models import vision_checkpoints
from tests.fakes.models.checkpoints import make_llava
from tests.fakes.models.idefics3 import make_idefics3, make_smolvlm
from tests.fakes.models.qwen_vl import CONFIGS, make_qwen_vl


class Whole(NamedTuple):
    """How transformers builds the processor of a family."""

    module: str
    processor: str
    image_processor: str
    settings: Mapping[str, Any] = MappingProxyType({})
    """Of the processor: what published checkpoints have in processor_config.json."""
    tokens: Mapping[str, str] = MappingProxyType({})
    """Names of special tokens that the processor asks its tokenizer for."""


_TILE_OF_16 = {"patch_size": 7, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
_IDEFICS3 = {"image_seq_len": 4}
_QWEN2, _QWEN3 = "Qwen2VLImageProcessorPil", Whole("qwen3_vl", "Qwen3VLProcessor", "Qwen2VLImageProcessorPil")
_PIXTRAL = "pixtral", "PixtralProcessor", "PixtralImageProcessorPil"
WHOLE = {
    "llava": Whole("llava", "LlavaProcessor", "CLIPImageProcessorPil", _TILE_OF_16),
    "idefics3": Whole("idefics3", "Idefics3Processor", "Idefics3ImageProcessorPil", _IDEFICS3),
    "smolvlm": Whole("smolvlm", "SmolVLMProcessor", "SmolVLMImageProcessorPil", _IDEFICS3),
    "qwen2_vl": Whole("qwen2_vl", "Qwen2VLProcessor", _QWEN2),
    "qwen2_5_vl": Whole("qwen2_5_vl", "Qwen2_5_VLProcessor", _QWEN2),
    "qwen3_vl": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "internvl": Whole(
        "internvl",
        "InternVLProcessor",
        "GotOcr2ImageProcessorPil",
        {"image_seq_length": 4},
        {
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    ),
    "mistral3": Whole(*_PIXTRAL, {"patch_size": 14, "spatial_merge_size": 2}),
    "pixtral": Whole(*_PIXTRAL, {"patch_size": 14}),
    "gemma3": Whole(
        "gemma3",
        "Gemma3Processor",
        "Gemma3ImageProcessorPil",
        {"image_seq_length": 4},
        {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"},
    ),
    "paddleocr_vl": Whole(
        "paddleocr_vl",
        "PaddleOCRVLProcessor",
        "PaddleOCRVLImageProcessorPil",
        tokens={"image_token": "<|IMAGE_PLACEHOLDER|>"},
    ),
    "llava_next": Whole("llava_next", "LlavaNextProcessor", "LlavaNextImageProcessorPil", _TILE_OF_16),
    "llava_onevision": Whole(
        "llava_onevision",
        "LlavaOnevisionProcessor",
        "LlavaOnevisionImageProcessorPil",
        {"num_image_tokens": 16, "vision_feature_select_strategy": "full", "vision_aspect_ratio": "anyres_max_2"},
    ),
}
"""By family, and SmolVLM, whose family is Idefics3."""
_MAKERS: dict[str, Callable[[Path], Path]] = {
    "llava": make_llava,
    "idefics3": make_idefics3,
    "smolvlm": make_smolvlm,
    **{family: partial(make_qwen_vl, family=family) for family in CONFIGS},
    **{family: partial(vision_checkpoints.make_vision, family=family) for family in vision_checkpoints.FAMILIES},
}


class _NoVideos:
    """In the place of a video processor. SmolVLM's processor reads these fields for every prompt."""

    num_frames = fps = None


def make_adding_bos(directory: Path, family: str) -> Path:
    """Write a checkpoint whose tokenizer adds the bos token to a text, as those of Llama, Mistral and Gemma do."""
    _MAKERS[family](directory)
    file, bos = directory / "tokenizer.json", transformers.AutoTokenizer.from_pretrained(directory).bos_token
    words = tokenizers.Tokenizer.from_file(str(file))
    words.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, words.token_to_id(bos))]
    )
    words.save(str(file))
    return directory


def whole_processor(directory: Path, family: str) -> Any:
    """From the checkpoint's tokenizer, chat template and preprocessor_config.json."""
    whole = WHOLE[family]
    named = {"extra_special_tokens": dict(whole.tokens)} if whole.tokens else {}
    parts = {
        "tokenizer": transformers.AutoTokenizer.from_pretrained(directory, **named),
        "image_processor": getattr(transformers, whole.image_processor).from_pretrained(directory),
    }
    module = _processing(whole.module)
    build = _without_videos(getattr(module, whole.processor))
    if "video_processor" in build.get_attributes():
        parts["video_processor"] = _NoVideos()
    template = (directory / "chat_template.jinja").read_text()
    with mock.patch.object(module, "num2words", str, create=True):
        return build(**parts, chat_template=template, **whole.settings)


def processed_ids(processor: Any, parts: Sequence[str | Image.Image], **options: Any) -> list[int]:
    """Of a message with these parts, and the beginning of an answer. ``options``: of the image processor."""
    content = [
        {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "image": part} for part in parts
    ]
    ids = processor.apply_chat_template(
        [{"role": "user", "content": content}],
        add_generation_prompt=True,
        tokenize=True,
        processor_kwargs={"images_kwargs": options},
    )
    return [int(id) for id in np.asarray(ids).ravel()]


def _processing(family: str) -> ModuleType:
    """Of transformers. Pixtral's takes a function of sizes from the module of its torchvision image processor; that of
    its Pillow image processor has it too."""
    name = f"transformers.models.{family}.processing_{family}"
    torchvision = "transformers.models.pixtral.image_processing_pixtral"
    if family != "pixtral" or find_spec("torchvision") is not None or name in sys.modules:
        return import_module(name)
    sys.modules[torchvision] = import_module(torchvision.replace("processing_", "processing_pil_"))
    try:
        return import_module(name)
    finally:
        del sys.modules[torchvision]


def _without_videos(processor: Any) -> Any:
    """A subclass that takes any object as its video processor."""

    def check(self: Any, name: str, argument: Any) -> Any:
        return None if name == "video_processor" else processor.check_argument_for_proper_class(self, name, argument)

    return type(processor.__name__, (processor,), {"check_argument_for_proper_class": check})
