"""The model's sizes, as transformers' configuration, and what its image processor does to a picture's size.

A cell is the square of patches that becomes one row of the prompt. Pictures are brought to LEAST to MOST cells.
"""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize
from transformers.models.qwen3_vl import modeling_qwen3_vl as qwen3_vl

import mmserve
from training import tokens
from training.pictures.world import GRID, SIDE
from training.stages.models import SHAPE

PACKAGED = Path(mmserve.__file__).parent / "packaged" / "llava"
PATCH = SIDE // GRID  # pixels, as the packaged tower's
MERGE = 2
CELL = PATCH * MERGE  # pixels
LEAST, MOST = 20, 28  # cells of a picture
OWN_LAYERS = 2
"""Of the tower, above the packaged one's; that one's last layer is left out."""
DEEPSTACK = (7,)
"""Layers of the tower whose output is added behind the first layers of the text model."""
NEW_LAYERS = 1
"""Of the text model, below those of the packaged one: they read colours, which come behind the first layer."""
SECTIONS = (12, 10, 10)
"""Frequencies of the rotary embedding: of the time, row and column axes, interleaved."""
Grid = tuple[int, int]  # rows and columns of cells


def grid_of(width: int, height: int) -> Grid:
    """The cells of a picture of this size in pixels."""
    rows, columns = smart_resize(height, width, CELL, LEAST * CELL**2, MOST * CELL**2)
    return rows // CELL, columns // CELL


def text_config() -> dict[str, Any]:
    """The packaged model's text model, whose weights it starts with, above one more layer."""
    return {
        "vocab_size": SHAPE.vocabulary,
        "hidden_size": SHAPE.width,
        "intermediate_size": SHAPE.feed_forward,
        "num_hidden_layers": NEW_LAYERS + SHAPE.layers,
        "num_attention_heads": SHAPE.heads,
        "num_key_value_heads": SHAPE.heads,
        "head_dim": SHAPE.width // SHAPE.heads,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": SHAPE.theta,
            "mrope_section": list(SECTIONS),
            "mrope_interleaved": True,
        },
        "bos_token_id": tokens.BOS,
        "eos_token_id": tokens.EOS,
        "pad_token_id": tokens.PAD,
    }


def vision_config() -> dict[str, Any]:
    """The packaged model's tower, whose weights it starts with, with other last layers."""
    return {
        "depth": SHAPE.vision_layers - 1 + OWN_LAYERS,
        "hidden_size": SHAPE.vision_width,
        "intermediate_size": 4 * SHAPE.vision_width,
        "num_heads": SHAPE.vision_heads,
        "hidden_act": "quick_gelu",
        "patch_size": PATCH,
        "spatial_merge_size": MERGE,
        "temporal_patch_size": 2,
        "num_position_embeddings": GRID**2,
        "out_hidden_size": SHAPE.width,
        "deepstack_visual_indexes": list(DEEPSTACK),
    }


def config() -> Qwen3VLConfig:
    """The whole model's configuration; the tokenizer is the packaged model's."""
    return Qwen3VLConfig(
        text_config=text_config(),
        vision_config=vision_config(),
        image_token_id=tokens.IMAGE,
        video_token_id=tokens.NEXT + 1,
        vision_start_token_id=tokens.FIRST,
        vision_end_token_id=tokens.NEXT + 2,
        tie_word_embeddings=False,
    )


def processor() -> dict[str, Any]:
    """preprocessor_config.json."""
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": LEAST * CELL**2, "longest_edge": MOST * CELL**2},
        "resample": 3,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "patch_size": PATCH,
        "temporal_patch_size": 2,
        "merge_size": MERGE,
    }


def network() -> Qwen3VLForConditionalGeneration:
    """transformers' model with new weights. On a CPU two of its steps take a fraction of
    the time when done otherwise: the convolution of whole patches as the matrix product that it is, and the tower's
    attention in pictures of one size at once."""
    model = Qwen3VLForConditionalGeneration(config())
    tower = model.model.visual
    tower.patch_embed.forward = partial(embed_patches, tower.patch_embed.proj)
    for block in tower.blocks:
        block.attn.forward = partial(attend, block.attn)
    return model


def embed_patches(convolution: nn.Conv3d, patches: Tensor) -> Tensor:
    """(N, numbers of a patch) -> (N, width)."""
    return F.linear(patches, convolution.weight.flatten(1), convolution.bias)


def attend(
    attention: Any, hidden: Tensor, cu_seqlens: Tensor, position_embeddings: tuple[Tensor, Tensor], **_: Any
) -> Tensor:
    """(N, width) -> (N, width): the tower's attention within each picture, neighbours of one size together."""
    query, key, value = attention.qkv(hidden).unflatten(-1, (3, attention.num_heads, -1)).unbind(1)
    query, key = qwen3_vl.apply_rotary_pos_emb_vision(query, key, *position_embeddings)
    runs = [(size, len(list(run))) for size, run in itertools.groupby(cu_seqlens.diff().tolist())]
    found = []
    rows = [part.split([size * count for size, count in runs]) for part in (query, key, value)]
    for (size, count), *parts in zip(runs, *rows, strict=True):
        q, k, v = (part.unflatten(0, (count, size)).transpose(1, 2) for part in parts)
        score = (q @ k.transpose(-1, -2) * attention.scaling).softmax(-1).to(v.dtype)
        found.append((score @ v).transpose(1, 2).flatten(0, 1).flatten(1))
    return attention.proj(torch.cat(found))
