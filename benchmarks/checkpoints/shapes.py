"""Four vision-language models of published architectures and small shapes, with random weights in bfloat16.

The text model has the shape of SmolLM2-135M: 30 layers, hidden size 576, 9 query and 3 KV heads, 49,152 tokens. The
tower has 12 layers and hidden size 384. A picture of 640x480 becomes 208 to 391 rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.checkpoints import settings
from benchmarks.checkpoints.tokenizer import VOCAB, special_ids, tokenizer

_HEAD_DIM, _LAYERS = 64, 12
_CHAT = ("<|im_end|>", "<|endoftext|>", "<|im_start|>")
"""End of a message, padding and start of a message in each of the four vocabularies."""
_CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""IMAGE: what the model's template writes for a picture."""
_ENDS = special_ids(_CHAT)
_TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "eos_token_id": _ENDS["<|im_end|>"],
    "bos_token_id": None,
    "pad_token_id": _ENDS["<|endoftext|>"],
    "tie_word_embeddings": True,
}
_TOWER: dict[str, Any] = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": 384 // _HEAD_DIM,
}
_QWEN_TOKENS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
_QWEN_TOWER: dict[str, Any] = {
    "hidden_size": 384,
    "depth": _LAYERS,
    "num_heads": 384 // _HEAD_DIM,
    "out_hidden_size": _TEXT["hidden_size"],
}


@dataclass(frozen=True)
class Shape:
    """``config`` gets the ids of the special tokens."""

    config: Callable[[Mapping[str, int]], transformers.PreTrainedConfig]
    image: str
    """What the chat template writes for a picture."""
    tokens: tuple[str, ...]
    """Special tokens beside those of the chat."""
    files: settings.Files
    named_tokens: Mapping[str, str] = field(default_factory=dict)


def _qwen(family: str, text: dict[str, Any], vision: dict[str, Any], ids: Mapping[str, int]) -> Any:
    image, video, start, end = (ids[token] for token in _QWEN_TOKENS)
    return transformers.AutoConfig.for_model(
        family,
        text_config=_TEXT | text,
        vision_config=_QWEN_TOWER | vision,
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
    )


def _qwen_2_5(ids: Mapping[str, int]) -> transformers.PreTrainedConfig:
    """The gated MLP of the tower has as many weights as the other towers' MLPs. A third of the layers sees all."""
    text: dict[str, Any] = {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}
    }
    vision: dict[str, Any] = {"intermediate_size": 1024, "fullatt_block_indexes": [2, 5, 8, 11]}
    return _qwen("qwen2_5_vl", text, vision, ids)


def _qwen_3(ids: Mapping[str, int]) -> transformers.PreTrainedConfig:
    sections = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [12, 10, 10], "mrope_interleaved": True}
    text: dict[str, Any] = {"head_dim": _HEAD_DIM, "rope_parameters": sections}
    vision: dict[str, Any] = {"intermediate_size": 1536, "patch_size": 16, "deepstack_visual_indexes": [2, 5, 8]}
    return _qwen("qwen3_vl", text, vision, ids)


def _internvl(ids: Mapping[str, int]) -> transformers.PreTrainedConfig:
    """InternVL3-1B also has a Qwen2."""
    return transformers.InternVLConfig(
        text_config=_TEXT | {"model_type": "qwen2"},
        vision_config=_TOWER | {"image_size": [settings.TILE, settings.TILE], "attention_bias": True},
        image_token_id=ids["<IMG_CONTEXT>"],
        image_seq_length=settings.INTERNVL_ROWS,
        tie_word_embeddings=True,
    )


def _smolvlm(ids: Mapping[str, int]) -> transformers.PreTrainedConfig:
    return transformers.SmolVLMConfig(
        text_config=_TEXT | {"model_type": "llama"},
        vision_config=_TOWER | {"image_size": settings.TILE, "patch_size": settings.PATCH},
        image_token_id=ids["<image>"],
        scale_factor=4,
        pad_token_id=_TEXT["pad_token_id"],
        tie_word_embeddings=True,
    )


_QWEN_IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
SHAPES: Mapping[str, Shape] = {
    "Qwen2.5-VL": Shape(_qwen_2_5, _QWEN_IMAGE, _QWEN_TOKENS, settings.QWEN_2_5),
    "Qwen3-VL": Shape(_qwen_3, _QWEN_IMAGE, _QWEN_TOKENS, settings.QWEN_3),
    "InternVL": Shape(
        _internvl,
        "<IMG_CONTEXT>",
        ("<IMG_CONTEXT>", "<img>", "</img>", "<video>"),
        settings.INTERNVL,
        {
            "start_image_token": "<img>",
            "end_image_token": "</img>",
            "context_image_token": "<IMG_CONTEXT>",
            "video_token": "<video>",
        },
    ),
    "SmolVLM": Shape(
        _smolvlm,
        "<image>",
        ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *settings.SMOLVLM_TILES),
        settings.SMOLVLM,
    ),
}
"""By the names under which they are published."""


def make_shape(directory: Path, name: str) -> Path:
    """Write the checkpoint: weights, config, tokenizer and settings."""
    config = write_settings(directory, name)
    torch.manual_seed(0)
    transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16).save_pretrained(directory)
    return directory


def write_settings(directory: Path, name: str) -> transformers.PreTrainedConfig:
    """Write tokenizer and settings. Returns the config."""
    shape = SHAPES[name]
    special = (*_CHAT, *shape.tokens)
    tokenizer(special, _CHATML.replace("IMAGE", shape.image), shape.named_tokens).save_pretrained(directory)
    for file, content in shape.files.items():
        (directory / file).write_text(json.dumps(content))
    return shape.config(special_ids(special))
