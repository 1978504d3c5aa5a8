"""Random bits that are a pure function of (seed, position): the key of a token's draw (``platforms.gumbel``).

The generator is SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014; finaliser
with Stafford's constants "Mix13"). It is counter-based: output ``position`` is ``mix(state + (position + 1) * GAMMA)``.
Here ``state`` is ``mix(seed)``, so that neighbouring seeds do not share a stream.
"""

from __future__ import annotations

from functools import lru_cache

_GAMMA = 0x9E3779B97F4A7C15
_MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_SHIFTS = (30, 27, 31)
_MASK = (1 << 64) - 1


def random_key(seed: int, position: int) -> int:
    """64 bits. A seed is taken modulo 2**64."""
    return _mix((_state(seed) + (position + 1) * _GAMMA) & _MASK)


@lru_cache(maxsize=1024)
def _state(seed: int) -> int:
    return _mix(seed & _MASK)


def _mix(bits: int) -> int:
    bits = ((bits ^ (bits >> _SHIFTS[0])) * _MULTIPLIERS[0]) & _MASK
    bits = ((bits ^ (bits >> _SHIFTS[1])) * _MULTIPLIERS[1]) & _MASK
    return bits ^ (bits >> _SHIFTS[2])
