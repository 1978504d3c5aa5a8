"""Rotary position embedding (Su et al. 2021): frequencies with linear and llama3 scaling, and the angles of a step."""

from __future__ import annotations

import math

import torch

from mmserve.checkpoint.spec import RopeScaling, TextSpec

Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of a step's rows, each [T, head_dim / 2], for ``Ops.rotary_``."""


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
    """Llama 3.1: low frequencies are divided by ``factor``, high ones kept, those between blended."""
    waves_in_context = scaling.original_max_position * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    unscaled = ((waves_in_context - low) / (high - low)).clamp(0, 1)
    return unscaled * frequencies + (1 - unscaled) * frequencies / scaling.factor


class Rotary:
    """Makes the angles of one step, which all layers share. One position axis."""

    def __init__(self, spec: TextSpec, dtype: torch.dtype, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(spec).to(device)
        self._dtype = dtype

    def angles(self, positions: torch.Tensor) -> Angles:
        """positions: int64 [1, T]."""
        radians = positions[0][:, None].float() * self._frequencies
        return radians.cos().to(self._dtype), radians.sin().to(self._dtype)
