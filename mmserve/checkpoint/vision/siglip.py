"""SigLIP's vision transformer (Zhai et al. 2023), which several families put before projectors of their own."""

from __future__ import annotations

from mmserve.checkpoint.vision.tower import TowerSpec


class SiglipSpec(TowerSpec, frozen=True, kw_only=True):
    """Square tiles in square patches, without a class token. A family's spec refines it."""

    image_size: int
    """Pixels of a tile's side."""

    @property
    def patches_per_side(self) -> int:
        return self.image_size // self.patch_size
