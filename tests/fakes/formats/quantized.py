"""Weights as ``--quantization`` rounds them, in plain torch."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
import transformers

from mmserve.model_backend.platforms.cpu.linear import quantization


def dequantized(weight: torch.Tensor, form: str) -> torch.Tensor:
    """[out, in] after rounding to int8 or int4."""
    return quantization.numbers(quantization.INT8 if form == "int8" else quantization.INT4, weight)


def round_text(directory: Path, rounded: Path, form: str) -> Path:
    """Copies a checkpoint of a vision-language model, with the weights of its text as ``--quantization`` rounds them.

    Its tower and the routers of experts stay as they are, and tables are never rounded to 4 bits.
    """
    shutil.copytree(directory, rounded)
    model = transformers.AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            of_text = name.startswith(("model.language_model.", "model.text_model.", "lm_head."))
            if of_text and weight.dim() > 1 and not name.endswith("mlp.gate.weight"):
                table = "embed" in name or "lm_head" in name
                for matrix in weight if weight.dim() == 3 else [weight]:  # experts are stacked
                    matrix.copy_(dequantized(matrix.data, "int8" if table else form))
    model.save_pretrained(rounded)
    return rounded
