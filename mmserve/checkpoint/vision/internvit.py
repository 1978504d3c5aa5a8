"""InternViT (Chen et al. 2023) with InternVL's projector."""

from __future__ import annotations

from mmserve.checkpoint.vision.tower import TowerSpec


class InternVit(TowerSpec, frozen=True, kw_only=True, tag="internvit"):
    """Square tiles in square patches behind a class token, without a last norm."""

    image_size: int
    """Pixels of a tile's side."""
    rms_norm: bool
    """RMSNorm instead of LayerNorm."""
    qkv_bias: bool
    qk_norm_eps: float | None
    """RMSNorm of queries and of keys, over all heads at once; None: no such norm."""
    fused_qkv: bool
    """The checkpoint stores the projections of queries, keys and values as one matrix."""
    merge_size: int
    """Features of ``merge_size`` x ``merge_size`` neighbours become one row."""
    projector_activation: str

    @property
    def patches_per_side(self) -> int:
        return self.image_size // self.patch_size

    @property
    def rows_per_tile(self) -> int:
        return (self.patches_per_side // self.merge_size) ** 2
