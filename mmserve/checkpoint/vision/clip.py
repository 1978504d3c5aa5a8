"""CLIP's vision transformer (Radford et al. 2021) with LLaVA's projector."""

from __future__ import annotations

from typing import Literal

from mmserve.checkpoint.vision.tower import TowerSpec


class ClipVision(TowerSpec, frozen=True, kw_only=True, tag="clip"):
    image_size: int
    feature_layer: int
    """The layer whose output is used; 0: the embeddings, -1: the last layer."""
    select_strategy: Literal["default", "full"]
    projector_activation: str
    projector_bias: bool

    @property
    def num_rows(self) -> int:
        """Of one picture. "default" drops the class token; "full" keeps it."""
        return (self.image_size // self.patch_size) ** 2 + (self.select_strategy == "full")

    @property
    def num_layers_needed(self) -> int:
        """Layers up to the feature layer."""
        return self.feature_layer if self.feature_layer >= 0 else self.num_layers + 1 + self.feature_layer
