"""Vision-language models of published architectures and small shapes, with random weights in bfloat16.

They have one of two sizes, see ``SMALL`` and ``LARGE``. A picture of 640x480 becomes 208 to 414 rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from benchmarks.checkpoints import settings
from benchmarks.checkpoints.tokenizer import VOCAB, special_ids, tokenizer

HEAD_DIM = 64
CHAT = ("<|im_end|>", "<|endoftext|>", "<|im_start|>")
"""End of a message, padding and start of a message in each of the four vocabularies."""
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}IMAGE{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""IMAGE: what the model's template writes for a picture."""
_ENDS = special_ids(CHAT)
_TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "max_position_embeddings": 8192,
    "eos_token_id": _ENDS["<|im_end|>"],
    "bos_token_id": None,
    "pad_token_id": _ENDS["<|endoftext|>"],
    "tie_word_embeddings": True,
}
_QWEN_TOKENS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")


@dataclass(frozen=True)
class Sizes:
    """Of the text model and the tower: layers, hidden size, inner size of the MLP, heads. All heads have 64 numbers."""

    text_layers: int
    text_hidden: int
    text_inner: int
    heads: int
    kv_heads: int
    layers: int
    hidden: int
    inner: int

    def text(self, **values: Any) -> dict[str, Any]:
        """The config of a text model."""
        sizes = {
            "num_hidden_layers": self.text_layers,
            "hidden_size": self.text_hidden,
            "intermediate_size": self.text_inner,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
        }
        return _TEXT | sizes | values

    def tower(self, **values: Any) -> dict[str, Any]:
        """The config of a tower."""
        sizes = {
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_attention_heads": self.hidden // HEAD_DIM,
        }
        return sizes | values

    def qwen_tower(self, **values: Any) -> dict[str, Any]:
        """The same in the names of Qwen's config."""
        sizes = {"depth": self.layers, "hidden_size": self.hidden, "num_heads": self.hidden // HEAD_DIM}
        return sizes | {"intermediate_size": self.inner, "out_hidden_size": self.text_hidden} | values


SMALL = Sizes(30, 576, 1536, heads=9, kv_heads=3, layers=12, hidden=384, inner=1536)
"""0.16 billion parameters: the text model of SmolLM2-135M."""
LARGE = Sizes(24, 896, 4864, heads=14, kv_heads=2, layers=12, hidden=768, inner=3072)
"""0.5 billion: the text model of Qwen2.5-0.5B with fewer tokens, the tower of SigLIP's base model."""


@dataclass(frozen=True)
class Shape:
    """``config`` gets the ids of the special tokens."""

    config: Callable[[Sizes, Mapping[str, int]], transformers.PreTrainedConfig]
    image: str
    """What the chat template writes for a picture."""
    tokens: tuple[str, ...]
    """Special tokens beside those of the chat."""
    files: settings.Files
    named_tokens: Mapping[str, str] = field(default_factory=dict)
    published_prefixes: Mapping[str, str] = field(default_factory=dict)
    """Beginnings of tensors' names as transformers writes them, and as they are published."""


def _qwen(family: str, text: dict[str, Any], vision: dict[str, Any], ids: Mapping[str, int]) -> Any:
    image, video, start, end = (ids[token] for token in _QWEN_TOKENS)
    return transformers.AutoConfig.for_model(
        family,
        text_config=text,
        vision_config=vision,
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=True,
    )


def _qwen_2_5(sizes: Sizes, ids: Mapping[str, int]) -> transformers.PreTrainedConfig:
    """The gated MLP of the tower has as many weights as the other towers' MLPs. A third of the layers sees all."""
    sections = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}
    vision = sizes.qwen_tower(intermediate_size=sizes.inner * 2 // 3, fullatt_block_indexes=[2, 5, 8, 11])
    return _qwen("qwen2_5_vl", sizes.text(rope_parameters=sections), vision, ids)


def _qwen_3(sizes: Sizes, ids: Mapping[str, int]) -> transformers.PreTrainedConfig:
    sections = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [12, 10, 10], "mrope_interleaved": True}
    text = sizes.text(head_dim=HEAD_DIM, rope_parameters=sections)
    return _qwen("qwen3_vl", text, sizes.qwen_tower(patch_size=16, deepstack_visual_indexes=[2, 5, 8]), ids)


def _internvl(sizes: Sizes, ids: Mapping[str, int]) -> transformers.PreTrainedConfig:
    """InternVL3-1B also has a Qwen2."""
    return transformers.InternVLConfig(
        text_config=sizes.text(model_type="qwen2"),
        vision_config=sizes.tower(image_size=[settings.TILE, settings.TILE], attention_bias=True),
        image_token_id=ids["<IMG_CONTEXT>"],
        image_seq_length=settings.INTERNVL_ROWS,
        tie_word_embeddings=True,
    )


def _smolvlm(sizes: Sizes, ids: Mapping[str, int]) -> transformers.PreTrainedConfig:
    return transformers.SmolVLMConfig(
        text_config=sizes.text(model_type="llama"),
        vision_config=sizes.tower(image_size=settings.TILE, patch_size=settings.PATCH),
        image_token_id=ids["<image>"],
        scale_factor=4,
        pad_token_id=_TEXT["pad_token_id"],
        tie_word_embeddings=True,
    )


def _gemma_3(sizes: Sizes, ids: Mapping[str, int]) -> transformers.PreTrainedConfig:
    """Five layers of six have a window. The picture's side is half as long as in Gemma 3, its rows are as many."""
    kinds = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(sizes.text_layers)]
    window = {"sliding_window": 512, "layer_types": kinds}
    text = sizes.text(model_type="gemma3_text", head_dim=HEAD_DIM, query_pre_attn_scalar=HEAD_DIM, **window)
    vision = sizes.tower(image_size=settings.GEMMA_SIDE, patch_size=settings.PATCH, vision_use_head=False)
    return transformers.Gemma3Config(
        text_config=text,
        vision_config=vision | {"model_type": "siglip_vision_model"},
        image_token_index=ids["<image_soft_token>"],
        boi_token_index=ids["<start_of_image>"],
        eoi_token_index=ids["<end_of_image>"],
        mm_tokens_per_image=settings.GEMMA_ROWS,
        eos_token_id=_TEXT["eos_token_id"],
        tie_word_embeddings=True,
    )


def _mistral_3(sizes: Sizes, ids: Mapping[str, int]) -> transformers.PreTrainedConfig:
    vision = sizes.tower(image_size=settings.PIXTRAL_SIDE, patch_size=settings.PATCH, head_dim=HEAD_DIM)
    return transformers.Mistral3Config(
        text_config=sizes.text(model_type="mistral", head_dim=HEAD_DIM, sliding_window=None),
        vision_config=vision | {"model_type": "pixtral"},
        image_token_index=ids["[IMG]"],
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
    "Gemma-3": Shape(
        _gemma_3,
        "<start_of_image>",
        ("<image_soft_token>", "<start_of_image>", "<end_of_image>", *("\n" * count for count in range(1, 5))),
        settings.GEMMA_3,
        {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
        {"vision_tower.": "vision_tower.vision_model."},
    ),
    "Mistral-Small-3": Shape(_mistral_3, "[IMG]", ("[IMG]", "[IMG_BREAK]", "[IMG_END]"), settings.MISTRAL_3),
}
"""By the names under which they are published."""


def make_shape(directory: Path, name: str, sizes: Sizes) -> Path:
    """Write the checkpoint: weights, config, tokenizer and settings."""
    config = write_settings(directory, name, sizes)
    torch.manual_seed(0)
    transformers.AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16).save_pretrained(directory)
    _rename(directory / "model.safetensors", SHAPES[name].published_prefixes)
    return directory


def _rename(file: Path, prefixes: Mapping[str, str]) -> None:
    """Give tensors the names under which the model is published: not every server knows those of transformers."""
    if not prefixes:
        return
    renamed = {}
    for name, tensor in load_file(file).items():
        prefix = next((each for each in prefixes if name.startswith(each)), "")
        renamed[prefixes.get(prefix, "") + name.removeprefix(prefix)] = tensor
    save_file(renamed, file, metadata={"format": "pt"})


def write_settings(directory: Path, name: str, sizes: Sizes) -> transformers.PreTrainedConfig:
    """Write tokenizer and settings. Returns the config."""
    shape = SHAPES[name]
    special = (*CHAT, *shape.tokens)
    tokenizer(special, CHATML.replace("IMAGE", shape.image), shape.named_tokens).save_pretrained(directory)
    for file, content in shape.files.items():
        (directory / file).write_text(json.dumps(content))
    return shape.config(sizes, special_ids(special))
