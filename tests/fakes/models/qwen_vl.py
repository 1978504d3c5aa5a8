"""Tiny random checkpoints of Qwen's vision-language families, made with transformers."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image

from mmserve.checkpoint.spec import ModelSpec
from mmserve.checkpoint.vision.qwen_vl import Qwen2Vision
from mmserve.model_backend.vision.interface import ViewTensors
from tests.fakes.models.checkpoints import tokenizer

SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
PAD, _, EOS, VISION_START, VISION_END, IMAGE, VIDEO = range(len(SPECIAL))
VOCAB = len(SPECIAL) + 256
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if loop.first and message.role != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message.role + '\n' }}"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""As Qwen's templates write it, without tools."""
_TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
    "bos_token_id": PAD,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}
_CHUNKED = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
_INTERLEAVED = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5], "mrope_interleaved": True}
_QWEN3 = {"depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "patch_size": 16}
_DEEPSTACK = {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 36, "out_hidden_size": 64}
_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_QWEN25 = {"depth": 3, "hidden_size": 32, "intermediate_size": 44, "num_heads": 2, "out_hidden_size": 64}
CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen2_vl": (
        {"rope_parameters": _CHUNKED},
        {"depth": 2, "embed_dim": 32, "hidden_size": 64, "num_heads": 2, "mlp_ratio": 2},
    ),
    "qwen2_5_vl": (
        {"rope_parameters": _CHUNKED},
        _QWEN25 | {"window_size": 56, "fullatt_block_indexes": [1]},
    ),
    "qwen3_vl": (
        {"rope_parameters": _INTERLEAVED, "num_hidden_layers": 4, "head_dim": 32},
        _QWEN3 | _DEEPSTACK,
    ),
    "qwen3_vl_moe": (
        {"rope_parameters": _INTERLEAVED, "num_hidden_layers": 3, "head_dim": 32, **_MOE},
        _QWEN3 | _DEEPSTACK,
    ),
}
"""By ``model_type``: what ``text_config`` has besides, and ``vision_config``."""


def make_qwen_vl(
    directory: Path,
    family: str,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    text: dict[str, Any] | None = None,
) -> Path:
    """Write a random model of a family, with tokenizer and image processor. ``text``: changes of its text_config."""
    torch.manual_seed(seed)
    usual, vision = CONFIGS[family]
    config = transformers.AutoConfig.for_model(
        family,
        text_config=_TEXT | usual | (text or {}),
        vision_config=vision | {"initializer_range": 0.2},
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
    )
    model = transformers.AutoModelForImageTextToText.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.to(dtype).save_pretrained(directory)
    tokenizer(SPECIAL, CHAT_TEMPLATE).save_pretrained(directory)
    image_processor(family).save_pretrained(directory)
    return directory


def image_processor(family: str) -> transformers.Qwen2VLImageProcessorPil:
    """Pictures become 4 to 40 rows."""
    patch_size = CONFIGS[family][1].get("patch_size", 14)
    limits = {"shortest_edge": 4 * (2 * patch_size) ** 2, "longest_edge": 40 * (2 * patch_size) ** 2}
    return transformers.Qwen2VLImageProcessorPil(size=limits, patch_size=patch_size)


def processed_qwen_vl(
    directory: Path, chat: list[dict[str, Any]], images: list[Image.Image], *, family: str, **options: Any
) -> dict[str, Any]:
    """What ``generate`` takes. The families' own processors cannot be made without torchvision.

    ``options``: settings of the image processor in place of the checkpoint's.
    """
    fast = transformers.AutoTokenizer.from_pretrained(directory)
    text = fast.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    found = dict(image_processor(family)(images, return_tensors="pt", **options)) if images else {}
    for grid in found["image_grid_thw"].tolist() if images else ():
        text = text.replace(SPECIAL[IMAGE], "<row>" * (prod(grid) // 4), 1)
    text = text.replace("<row>", SPECIAL[IMAGE])
    found |= dict(fast(text, add_special_tokens=False, return_tensors="pt", return_token_type_ids=False))
    return found | {"mm_token_type_ids": (found["input_ids"] == IMAGE).int()}


def random_pictures(model: ModelSpec, grids: Sequence[tuple[int, int, int]]) -> list[ViewTensors]:
    """Patches of pictures of these grids."""
    vision, generator = model.vision, torch.manual_seed(3)
    assert isinstance(vision, Qwen2Vision)
    return [
        ViewTensors(torch.randn(prod(grid), vision.patch_nums, generator=generator), torch.tensor([grid]).int())
        for grid in grids
    ]
