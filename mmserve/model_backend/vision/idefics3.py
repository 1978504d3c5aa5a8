"""Idefics3's vision tower (Laurençon et al. 2024): SigLIP over a picture's tiles, pixel shuffle, one projection."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from mmserve.checkpoint.vision.idefics3 import Idefics3Vision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear import ColumnParallelLinear, Projection
from mmserve.model_backend.layers.target import Target
from mmserve.model_backend.vision.interface import ViewTensors
from mmserve.model_backend.vision.parts.siglip import SiglipEncoder
from mmserve.model_backend.vision.parts.tiles import encode_tiles, space_to_depth


class Idefics3Tower(nn.Module):
    """``context`` is that of one rank alone."""

    def __init__(self, spec: Idefics3Vision, text_hidden_size: int, *, context: LayerContext) -> None:
        super().__init__()
        self._side, self._scale = spec.patches_per_side, spec.scale
        order = position_order(spec.patches_per_side).to(context.device)
        self.encoder = SiglipEncoder(spec, context=context.below("vision."), position_order=order)
        outs = [Projection("proj", text_hidden_size)]
        square_size = spec.hidden_size * spec.scale**2
        self.projector = ColumnParallelLinear(square_size, outs, bias=False, context=context.below("projector."))

    @torch.inference_mode()
    def forward(self, pictures: Sequence[ViewTensors]) -> list[torch.Tensor]:
        """Tiles [k, 3, image_size, image_size] of each picture -> its rows [k * rows of a tile, text hidden size]."""
        return encode_tiles(pictures, self._encode)

    def _encode(self, tiles: torch.Tensor) -> torch.Tensor:
        squares = space_to_depth(self.encoder(tiles), self._side, self._side, self._scale)
        return self.projector(squares)  # type: ignore[no-any-return]

    def targets(self) -> dict[str, Target | None]:
        """Canonical tensor name -> parameter."""
        return {**dict(self.encoder.targets()), **dict(self.projector.targets())}


def position_order(side: int) -> torch.Tensor:
    """The learned position of each patch of a tile, int64 [side * side].

    Idefics3 finds it by the place of the patch as a fraction of the tile. Rounding in float32 gives some patches the
    position of a neighbour, for 31 patches a side for example; the same arithmetic is therefore done here.
    """
    boundaries = torch.arange(1 / side, 1.0, 1 / side)
    fractions = torch.arange(side, dtype=torch.float32) * (1.0 / torch.tensor(side))
    buckets = torch.bucketize(fractions.clamp(max=1.0 - 1e-6), boundaries, right=True)
    return (buckets[:, None] * side + buckets).flatten()
