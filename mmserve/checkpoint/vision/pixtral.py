"""Pixtral's vision transformer (Agrawal et al. 2024) with the projectors of Mistral-Small-3 and of Pixtral-12B."""

from __future__ import annotations

import msgspec

from mmserve.checkpoint.config.json_config import check_activation
from mmserve.checkpoint.vision.tower import TowerSpec, side_of
from mmserve.runtime.errors import StartupError


class Pixtral(TowerSpec, frozen=True, kw_only=True, tag="pixtral"):
    """Pictures of any size in square patches, whose positions are rotations by row and column. No last norm."""

    rope_theta: float
    merge_size: int | None
    """Before the projector, patches of ``merge_size`` x ``merge_size`` neighbours become one; None: no such merger."""
    projector_norm_eps: float
    projector_activation: str
    projector_bias: bool

    @property
    def pixels_per_row(self) -> int:
        """Side of the square of pixels that becomes one row."""
        return self.patch_size * (self.merge_size or 1)


_NORM_EPS = 1e-5
"""config.json does not give it."""


class RopeJson(msgspec.Struct, kw_only=True):
    rope_theta: float = 10_000.0


class PixtralJson(msgspec.Struct, kw_only=True):
    """``vision_config``. Defaults are those of PixtralVisionConfig."""

    model_type: str = "pixtral"
    hidden_size: int = 1024
    intermediate_size: int = 4096
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    num_channels: int = 3
    patch_size: int | list[int] = 16
    hidden_act: str = "gelu"
    rope_theta: float | None = None
    rope_parameters: RopeJson | None = None

    def spec(
        self, *, merge_size: int | None, projector_norm_eps: float, projector_activation: str, projector_bias: bool
    ) -> Pixtral:
        """Raises StartupError for what is not supported."""
        for activation in (self.hidden_act, projector_activation):
            check_activation(activation)
        if self.model_type != "pixtral":
            raise StartupError(f"vision tower {self.model_type!r} is not supported here; supported is 'pixtral'")
        if self.num_channels != 3 or self.hidden_size % (4 * self.num_attention_heads):
            raise StartupError("vision_config: supported are 3 channels, and heads of a multiple of 4")
        return Pixtral(
            patch_size=side_of(self.patch_size, "patch_size"),
            hidden_size=self.hidden_size,
            intermediate_size=self.intermediate_size,
            num_layers=self.num_hidden_layers,
            num_heads=self.num_attention_heads,
            activation=self.hidden_act,
            layer_norm_eps=_NORM_EPS,
            patches_per_row=(merge_size or 1) ** 2,
            rope_theta=self.rope_theta or (self.rope_parameters or RopeJson()).rope_theta,
            merge_size=merge_size,
            projector_norm_eps=projector_norm_eps,
            projector_activation=projector_activation,
            projector_bias=projector_bias,
        )
