"""Text models of equal shape and different architectures, with random weights in bfloat16."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open

from benchmarks.checkpoints.shapes import CHAT, CHATML, HEAD_DIM, Sizes
from benchmarks.checkpoints.tokenizer import tokenizer

TEXT_SHAPES: Mapping[str, Mapping[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {"head_dim": HEAD_DIM},
    "mistral": {"sliding_window": None},
}
"""transformers' name of a family -> its part of the config."""


def make_text_shape(directory: Path, name: str, sizes: Sizes) -> Path:
    """Write the checkpoint: weights, config and tokenizer."""
    tokenizer(CHAT, CHATML, {}).save_pretrained(directory)
    torch.manual_seed(0)
    config = text_config(name, sizes)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(directory)
    return directory


def text_config(name: str, sizes: Sizes) -> transformers.PreTrainedConfig:
    return transformers.AutoConfig.for_model(name, **sizes.text(**TEXT_SHAPES[name]))


def num_parameters(directory: Path) -> int:
    """Of the checkpoint; a head that is the embedding is counted once."""
    with safe_open(directory / "model.safetensors", "pt") as file:
        return sum(prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 (not a dict)
