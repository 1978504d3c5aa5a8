"""PaddleOCR-VL's vision tower: SigLIP for pictures of any size."""

from __future__ import annotations

from mmserve.checkpoint.vision.siglip import SiglipSpec


class PaddleOcrVision(SiglipSpec, frozen=True, kw_only=True, tag="paddleocr_vl"):
    """Patches have learned positions, which are those of a square resampled, and rotations by row and column.

    ``image_size``: the pixels that the learned positions are for.
    """

    merge_size: int
    """Patches of ``merge_size`` x ``merge_size`` neighbours become one row."""
    rope_theta: float
