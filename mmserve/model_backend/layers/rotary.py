"""Rotary position embedding (Su et al. 2021): frequencies with linear and llama3 scaling, and the angles of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mmserve.checkpoint.spec import LayerSpec, Rope

Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of a step's rows for each of the model's ropes, [ropes, T, head_dim / 2]."""


def inverse_frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """float32 [head_dim / 2]: radians per position of each pair, scaling applied."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    match rope.kind:
        case "linear":
            return frequencies / rope.factor
        case "llama3":
            return _llama3(frequencies, rope)
        case "default":
            return frequencies


def _llama3(frequencies: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Llama 3.1: low frequencies are divided by ``factor``, high ones kept, those between blended."""
    waves_in_context = rope.original_max_position * frequencies / (2 * math.pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    unscaled = ((waves_in_context - low) / (high - low)).clamp(0, 1)
    return unscaled * frequencies + (1 - unscaled) * frequencies / rope.factor


class Rotary:
    """Makes the angles of one step, which all layers share. One position axis; a row for each distinct rope."""

    def __init__(self, layers: Sequence[LayerSpec], head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        distinct = list(dict.fromkeys(layer.rope for layer in layers if layer.rope is not None))
        self.ropes: tuple[int | None, ...] = tuple(
            None if layer.rope is None else distinct.index(layer.rope) for layer in layers
        )
        """Of each layer: its row of the angles, None if it rotates nothing."""
        frequencies = [inverse_frequencies(rope, head_dim) for rope in distinct]
        self._frequencies = torch.stack(frequencies).to(device) if distinct else torch.empty(0, head_dim // 2)
        self._dtype = dtype

    def angles(self, positions: torch.Tensor) -> Angles:
        """positions: int64 [1, T]."""
        radians = positions[0][:, None].float() * self._frequencies[:, None]
        return radians.cos().to(self._dtype), radians.sin().to(self._dtype)
