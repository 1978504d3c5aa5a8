"""SigLIP with Idefics3's connector."""

from __future__ import annotations

from mmserve.checkpoint.vision.siglip import SiglipSpec


class Idefics3Vision(SiglipSpec, frozen=True, kw_only=True, tag="idefics3"):
    scale: int
    """A square of this many patches a side becomes one row."""
