"""Dequantizes packed weights in plain torch."""

from __future__ import annotations

import torch

from mmserve.model_backend.platforms.cpu import quantization


def dequantized(weight: torch.Tensor, form: str) -> torch.Tensor:
    """[out, in] after rounding to int8 or int4."""
    packed = quantization.to_int8(weight) if form == "int8" else quantization.to_int4(weight)
    if form == "int8":
        return quantization.int8_rows(packed, torch.arange(len(weight)))
    scale, minimum = packed[..., :64].contiguous().view(torch.bfloat16).float().chunk(2, dim=-1)
    words = packed[..., 64:].unflatten(-1, (4, 16, 2, 2))  # eight inputs, output, even or odd input, byte
    pairs = torch.stack((words & 15, words >> 4), dim=-1)
    q = pairs.permute(0, 1, 3, 2, 5, 6, 4).flatten(-4)
    rows = q * scale[..., None] + minimum[..., None]
    return rows.transpose(1, 2).flatten(2).flatten(0, 1)
