"""SigLIP with Gemma 3's projector."""

from __future__ import annotations

from mmserve.checkpoint.vision.siglip import SiglipSpec


class Gemma3Vision(SiglipSpec, frozen=True, kw_only=True, tag="gemma3"):
    """Each row is the mean of a square of patches, normed and projected."""

    rows_per_side: int
    """Of a tile."""
    norm_offset: float = 1.0
    """Added to the weights of the projector's norm."""

    @property
    def run_rows(self) -> int:
        """Of a tile: with pan and scan a picture becomes several, with text between them."""
        return self.rows_per_side**2
