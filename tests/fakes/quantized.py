"""Dequantizes packed weights in plain torch."""

from __future__ import annotations

import torch

from mmserve.model_backend.platforms.cpu import quantization


def dequantized(weight: torch.Tensor, form: str) -> torch.Tensor:
    """[out, in] after rounding to int8 or int4."""
    if form == "int8":
        return quantization.int8_rows(quantization.to_int8(weight), torch.arange(len(weight)))
    return quantization.from_int4(quantization.to_int4(weight))
