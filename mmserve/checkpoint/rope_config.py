"""Rotary positions as config.json gives them."""

from __future__ import annotations

import math
from typing import Literal, cast, get_args

import msgspec

from mmserve.checkpoint.spec import Rope
from mmserve.runtime.errors import StartupError

_AXES = 3
"""Of a position with sections: time, row and column."""
_Kind = Literal["default", "linear", "llama3", "yarn"]


class RopeJson(msgspec.Struct, kw_only=True):
    """``rope_parameters`` (transformers 5) or ``rope_scaling`` (earlier versions, sometimes with ``type``)."""

    rope_type: str | None = None
    type: str | None = None
    rope_theta: float | None = None
    factor: float | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int | None = None
    partial_rotary_factor: float = 1.0
    attention_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    mrope_section: list[int] | None = None
    mrope_interleaved: bool = False

    def rope(self, default_theta: float, max_position: int) -> Rope:
        """``max_position``: of the config. Raises StartupError for a kind that is not supported."""
        kind = self.rope_type or self.type or "default"
        kind = "default" if kind == "mrope" else kind  # its sections say the same
        if kind not in get_args(_Kind):
            raise StartupError(f"rope type {kind!r} is not supported; supported are {', '.join(get_args(_Kind))}")
        if self.factor is None and kind != "default":
            raise StartupError(f"rope type {kind!r} lacks its factor")
        factor = self.factor or 1.0
        return Rope(
            theta=self.rope_theta or default_theta,
            kind=cast(_Kind, kind),
            factor=factor,
            low_freq_factor=self.low_freq_factor,
            high_freq_factor=self.high_freq_factor,
            original_max_position=self.original_max_position_embeddings or max_position,
            beta_fast=self.beta_fast or 32.0,
            beta_slow=self.beta_slow or 1.0,
            truncate=self.truncate,
            amplitude=self._amplitude(factor) if kind == "yarn" else 1.0,
            fraction=self.partial_rotary_factor,
            sections=tuple(self.mrope_section or ()),
            interleaved=self.mrope_interleaved,
        )

    def _amplitude(self, factor: float) -> float:
        """Of yarn: what config.json says, or follows from the factor."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return _yarn_amplitude(factor, self.mscale) / _yarn_amplitude(factor, self.mscale_all_dim)
        return _yarn_amplitude(factor, 1.0)


def check_rope(rope: Rope, head_dim: int) -> None:
    """Raises StartupError if heads of this size cannot turn so."""
    turned = int(head_dim * rope.fraction)
    if not 0 < turned <= head_dim or turned % 2:
        raise StartupError(f"partial_rotary_factor {rope.fraction} does not fit heads of {head_dim}")
    if rope.sections and (len(rope.sections) != _AXES or min(rope.sections) < 0 or sum(rope.sections) != turned // 2):
        raise StartupError(f"mrope_section {list(rope.sections)} must be {_AXES} numbers with the sum {turned // 2}")


def _yarn_amplitude(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0
