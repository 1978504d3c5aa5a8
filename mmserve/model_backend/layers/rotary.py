"""Rotary position embedding (Su et al. 2021): frequencies with their scalings, and the angles of a step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import torch
from msgspec.structs import replace

from mmserve.checkpoint.spec import LayerSpec, Rope
from mmserve.model_backend.attention.interface import RopeRows
from mmserve.runtime.errors import StartupError

_SHORTEST_RAMP = 0.001
"""Where a ramp would begin and end at one index."""
Angles = tuple[torch.Tensor, torch.Tensor]
"""Cosines and sines of a step's rows for each of the model's ropes, [ropes, T, pairs of a head]."""


def _ropes(rope: Rope) -> tuple[Rope, Rope]:
    """Of queries and keys."""
    return rope, replace(rope, query_growth=0.0)


def inverse_frequencies(rope: Rope, size: int) -> torch.Tensor:
    """float32 [size / 2]: radians per position of each pair of the ``size`` numbers that turn, scaling applied."""
    exponents = torch.arange(0, size, 2, dtype=torch.int64).float() / size
    frequencies = 1.0 / (rope.theta**exponents)
    match rope.kind:
        case "linear":
            return frequencies / rope.factor
        case "llama3":
            return _llama3(frequencies, rope)
        case "yarn":
            return _yarn(frequencies, rope)
        case "longrope":
            assert not rope.long_divisors, "the divisors depend on the context"
            return frequencies / torch.tensor(rope.divisors)
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


def position_axes(rope: Rope, num_pairs: int) -> torch.Tensor:
    """int64 [num_pairs]: the position axis of each pair, from the rope's sections."""
    if not rope.sections:
        return torch.zeros(num_pairs, dtype=torch.int64)
    axes = torch.arange(len(rope.sections))
    if not rope.interleaved:
        return axes.repeat_interleave(torch.tensor(rope.sections))
    # Qwen3-VL: every third pair belongs to an axis, as far as its section reaches; axis 0 has the others.
    turns = torch.arange(num_pairs).remainder(len(axes))
    ends = torch.tensor(rope.sections)[turns] * len(axes)
    return turns.where(torch.arange(num_pairs) < ends, 0)


class Rotary:
    """Makes the angles of one step, which all layers share. A row for each distinct rope."""

    def __init__(self, layers: Sequence[LayerSpec], head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        """Raises StartupError for layers that turn different numbers of a head, or pair them differently."""
        of_layers = [None if layer.rope is None else _ropes(layer.rope) for layer in layers]
        distinct = list(dict.fromkeys(chain.from_iterable(ropes for ropes in of_layers if ropes)))
        self.ropes = [None if ropes is None else RopeRows(*map(distinct.index, ropes)) for ropes in of_layers]
        """Of each layer; None if it rotates nothing."""
        if len({(rope.fraction, rope.adjacent) for rope in distinct}) > 1:
            raise StartupError("layers that turn different parts of their heads are not supported")
        self.size = int(head_dim * distinct[0].fraction) if distinct else head_dim
        """How many numbers of each head turn, its first."""
        self.adjacent = bool(distinct) and distinct[0].adjacent
        """See ``Rope.adjacent``."""
        frequencies = [inverse_frequencies(rope, self.size) for rope in distinct]
        self._frequencies = (torch.stack(frequencies) if distinct else torch.empty(0, self.size // 2)).to(device)
        axes = [position_axes(rope, self.size // 2) for rope in distinct]
        self._axes = torch.stack(axes).to(device) if any(rope.sections for rope in distinct) else None
        """[ropes, pairs]: the axis of each pair. None: all turn with the first."""
        self._amplitudes = torch.tensor([rope.amplitude for rope in distinct]).to(device)[:, None, None]
        growth = [(rope.query_growth, rope.original_max_position) for rope in distinct]
        self._growth = torch.tensor(growth).T[:, :, None].to(device) if any(beta for beta, _ in growth) else None
        self._dtype = dtype

    def angles(self, positions: torch.Tensor) -> Angles:
        """positions: int64 [axes, T], or [1, T] where all axes agree."""
        if self._axes is None or len(positions) == 1:
            of_pairs = positions[0][:, None].float()
        else:
            of_pairs = positions.float()[self._axes].transpose(1, 2).contiguous()
        radians = of_pairs * self._frequencies[:, None]
        amplitudes = self._amplitudes
        if self._growth is not None:
            beta, original = self._growth
            amplitudes = amplitudes * (1 + beta * (1 + positions[0] // original).log())[:, :, None]
        cos, sin = radians.cos() * amplitudes, radians.sin() * amplitudes
        return cos.to(self._dtype), sin.to(self._dtype)
