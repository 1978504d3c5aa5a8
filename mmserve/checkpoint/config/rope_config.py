"""Rotary positions as config.json gives them."""

from __future__ import annotations

import math
from typing import Literal, cast, get_args

import msgspec
from msgspec.structs import replace

from mmserve.checkpoint.spec import Rope, TextSpec
from mmserve.runtime.errors import StartupError

_AXES = 3
"""Of a position with sections: time, row and column."""
_Kind = Literal["default", "linear", "llama3", "yarn", "longrope"]
_AS_DEFAULT = ("mrope", "dynamic")
"""Sections say the former. The latter changes frequencies beyond ``max_position`` only, where no context reaches."""


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
    short_factor: list[float] | None = None
    long_factor: list[float] | None = None
    llama_4_scaling_beta: float | None = None
    mrope_section: list[int] | None = None
    mrope_interleaved: bool = False

    def rope(self, default_theta: float, max_position: int) -> Rope:
        """``max_position``: of the config. Raises StartupError for a kind that is not supported."""
        kind = self.rope_type or self.type or "default"
        kind = "default" if kind in _AS_DEFAULT else kind
        if kind not in get_args(_Kind):
            raise StartupError(f"rope type {kind!r} is not supported; supported are {', '.join(get_args(_Kind))}")
        if kind == "longrope" and not (self.short_factor and self.long_factor):
            raise StartupError("rope type 'longrope' lacks its short_factor or its long_factor")
        if self.factor is None and kind not in ("default", "longrope"):
            raise StartupError(f"rope type {kind!r} lacks its factor")
        factor, original = self.factor or 1.0, self.original_max_position_embeddings or max_position
        stretched = self.factor or max_position / original
        return Rope(
            theta=self.rope_theta or default_theta,
            kind=cast(_Kind, kind),
            factor=factor,
            low_freq_factor=self.low_freq_factor,
            high_freq_factor=self.high_freq_factor,
            original_max_position=original,
            beta_fast=self.beta_fast or 32.0,
            beta_slow=self.beta_slow or 1.0,
            truncate=self.truncate,
            divisors=tuple(self.short_factor or ()) if kind == "longrope" else (),
            long_divisors=tuple(self.long_factor or ()) if kind == "longrope" else (),
            amplitude=self._amplitude(kind, stretched, original),
            query_growth=self.llama_4_scaling_beta or 0.0,
            fraction=self.partial_rotary_factor,
            sections=tuple(self.mrope_section or ()),
            interleaved=self.mrope_interleaved,
        )

    def _amplitude(self, kind: str, factor: float, original: int) -> float:
        """Of yarn and longrope: what config.json says, or follows from the factor."""
        if kind not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if kind == "longrope":
            return math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
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
    if rope.query_growth and rope.fraction != 1.0:
        raise StartupError("llama_4_scaling_beta is supported only where whole heads turn")
    if rope.kind == "longrope" and not len(rope.divisors) == len(rope.long_divisors) == turned // 2:
        raise StartupError(f"short_factor and long_factor must be {turned // 2} numbers each")


def for_context(text: TextSpec, tokens: int) -> TextSpec:
    """The model for sequences of up to so many tokens, on which longrope and ``query_growth`` depend."""
    layers = [replace(layer, rope=_for_context(layer.rope, tokens)) for layer in text.layers]
    return replace(text, layers=tuple(layers))


def _for_context(rope: Rope | None, tokens: int) -> Rope | None:
    if rope is None:
        return None
    if tokens <= rope.original_max_position:
        return replace(rope, long_divisors=(), query_growth=0.0)
    return replace(rope, divisors=rope.long_divisors or rope.divisors, long_divisors=())


def _yarn_amplitude(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0
