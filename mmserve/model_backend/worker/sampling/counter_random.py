"""Random numbers in [0, 1) that are a pure function of (seed, position), on the host and on a device alike.

The generator is SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014; finaliser
with Stafford's constants "Mix13"). It is counter-based: output ``position`` is ``mix(state + (position + 1) * GAMMA)``.
Here ``state`` is ``mix(seed)``, so that neighbouring seeds do not share a stream. The upper 48 bits are used: in
float64, a total times such a number never rounds up to the total.
"""

from __future__ import annotations

from functools import lru_cache

import torch

_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_MASK = (1 << 64) - 1
_BITS = 48
_SCALE = 2.0**-_BITS


def uniform(seed: int, position: int) -> float:
    """On the host. A seed is taken modulo 2**64."""
    return (_mix((_state(seed) + (position + 1) * _GAMMA) & _MASK) >> (64 - _BITS)) * _SCALE


def uniforms_on_device(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """float64 [n], the same numbers as ``uniform``. Both arguments are int64 [n]; a seed keeps its 64 bits."""
    state = _mix_device(seeds)
    bits = _shift_right(_mix_device(state + (positions + 1) * _signed(_GAMMA)), 64 - _BITS)
    return bits.double() * _SCALE


@lru_cache(maxsize=1024)
def _state(seed: int) -> int:
    return _mix(seed & _MASK)


def _mix(bits: int) -> int:
    bits = ((bits ^ (bits >> _SHIFTS[0])) * _MULTIPLIERS[0]) & _MASK
    bits = ((bits ^ (bits >> _SHIFTS[1])) * _MULTIPLIERS[1]) & _MASK
    return bits ^ (bits >> _SHIFTS[2])


def _mix_device(bits: torch.Tensor) -> torch.Tensor:
    """As ``_mix``. Products of int64 keep the low 64 bits."""
    for shift, multiplier in zip(_SHIFTS[:2], _MULTIPLIERS, strict=True):
        bits = (bits ^ _shift_right(bits, shift)) * _signed(multiplier)
    return bits ^ _shift_right(bits, _SHIFTS[2])


def _shift_right(bits: torch.Tensor, shift: int) -> torch.Tensor:
    """Logical shift: int64 shifts copies of the sign in."""
    return (bits >> shift) & ((1 << (64 - shift)) - 1)


def _signed(bits: int) -> int:
    return bits - (1 << 64) if bits >> 63 else bits
