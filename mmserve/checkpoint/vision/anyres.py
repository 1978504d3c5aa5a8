"""Towers of tiles whose rows are put together to one picture again: LLaVA-NeXT's and LLaVA-OneVision's."""

from __future__ import annotations

from mmserve.checkpoint.vision.clip import ClipVision
from mmserve.checkpoint.vision.siglip import SiglipSpec


class LlavaNextVision(ClipVision, frozen=True, kw_only=True, tag="llava_next"):
    """Of each tile CLIP's features without the class token."""


class LlavaOnevisionVision(SiglipSpec, frozen=True, kw_only=True, tag="llava_onevision"):
    """Of each tile the output of SigLIP's last layer."""

    projector_activation: str
    projector_bias: bool
