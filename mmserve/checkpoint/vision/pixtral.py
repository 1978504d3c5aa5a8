"""Pixtral's vision transformer (Agrawal et al. 2024) with the projectors of Mistral-Small-3 and of Pixtral-12B."""

from __future__ import annotations

from mmserve.checkpoint.vision.tower import TowerSpec


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
