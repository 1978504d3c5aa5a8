"""Rotary position embedding (Su et al. 2021) in Hugging Face's half-split layout, with linear and llama3 scaling."""

from __future__ import annotations

import math

import torch

from mmserve.checkpoint.spec import RopeScaling, TextSpec
from mmserve.model_backend.platforms.cpu import kernels


def inverse_frequencies(spec: TextSpec) -> torch.Tensor:
    """float32 [head_dim / 2]: radians per position of each pair, scaling applied."""
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).float() / spec.head_dim
    frequencies = 1.0 / (spec.rope_theta**exponents)
    match spec.rope_scaling.kind:
        case "linear":
            return frequencies / spec.rope_scaling.factor
        case "llama3":
            return _llama3(frequencies, spec.rope_scaling)
        case "default":
            return frequencies


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Llama 3.1: long waves are stretched by ``factor``, short ones kept, those between blended."""
    waves_in_context = scaling.original_max_position * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((waves_in_context - low) / (high - low)).clamp(0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


class Rotary:
    """Rotations of one step's positions, made once and used by every layer."""

    def __init__(self, spec: TextSpec, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(spec).to(device)

    def angles(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 [T] -> cosines and sines, each [T, head_dim / 2], for ``rotate_``."""
        radians = positions[:, None].float() * self._frequencies
        return radians.cos().to(dtype), radians.sin().to(dtype)


def rotate_(x: torch.Tensor, angles: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Rotate [T, heads, head_dim] in place, rows any distance apart."""
    if kernels.usable(x):
        kernels.rotate_(x, *angles)
        return
    cos, sin = (angle[:, None] for angle in angles)
    first, second = x.chunk(2, dim=-1)
    rotated = (first * cos).addcmul_(second, sin, value=-1)
    second.mul_(cos).addcmul_(first, sin)
    first.copy_(rotated)
