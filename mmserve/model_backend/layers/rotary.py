"""Rotary position embedding (Su et al. 2021): frequencies with their scalings, and the angles of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from mmserve.checkpoint.spec import LayerSpec, Rope

_SHORTEST_RAMP = 0.001
"""Where a ramp would begin and end at one index."""
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
        case "yarn":
            return _yarn(frequencies, rope)
        case "default":
            return frequencies


def _llama3(frequencies: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Llama 3.1: low frequencies are divided by ``factor``, high ones kept, those between blended."""
    waves_in_context = rope.original_max_position * frequencies / (2 * math.pi)
    low, high = rope.low_freq_factor, rope.high_freq_factor
    unscaled = ((waves_in_context - low) / (high - low)).clamp(0, 1)
    return unscaled * frequencies + (1 - unscaled) * frequencies / rope.factor


def _yarn(frequencies: torch.Tensor, rope: Rope) -> torch.Tensor:
    """YaRN (Peng et al. 2023): pairs that turn often in the original context are kept, those that turn seldom are
    divided by ``factor``, those between blended along a ramp over their indices."""
    low, high = (_index_of(turns, rope, len(frequencies)) for turns in (rope.beta_fast, rope.beta_slow))
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * len(frequencies) - 1)
    ramp = (torch.arange(len(frequencies), dtype=torch.float32) - low) / ((high - low) or _SHORTEST_RAMP)
    scaled = ramp.clamp(0, 1)
    return frequencies / rope.factor * scaled + frequencies * (1 - scaled)


def _index_of(turns: float, rope: Rope, num_pairs: int) -> float:
    """Index of the pair that turns so often in the original context."""
    return num_pairs * math.log(rope.original_max_position / (turns * 2 * math.pi)) / math.log(rope.theta)


class Rotary:
    """Makes the angles of one step, which all layers share. One position axis; a row for each distinct rope."""

    def __init__(self, layers: Sequence[LayerSpec], head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        distinct = list(dict.fromkeys(layer.rope for layer in layers if layer.rope is not None))
        self.ropes: tuple[int | None, ...] = tuple(
            None if layer.rope is None else distinct.index(layer.rope) for layer in layers
        )
        """Of each layer: its row of the angles, None if it rotates nothing."""
        frequencies = [inverse_frequencies(rope, head_dim) for rope in distinct]
        self._frequencies = (torch.stack(frequencies) if distinct else torch.empty(0, head_dim // 2)).to(device)
        self._amplitudes = torch.tensor([rope.amplitude for rope in distinct]).to(device)[:, None, None]
        self._dtype = dtype

    def angles(self, positions: torch.Tensor) -> Angles:
        """positions: int64 [1, T]."""
        radians = positions[0][:, None].float() * self._frequencies[:, None]
        cos, sin = radians.cos() * self._amplitudes, radians.sin() * self._amplitudes
        return cos.to(self._dtype), sin.to(self._dtype)
