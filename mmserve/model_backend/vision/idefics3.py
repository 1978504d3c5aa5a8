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
from mmserve.model_backend.vision.siglip import SiglipEncoder
from mmserve.model_backend.vision.tiles import encode_tiles


class Idefics3Tower(nn.Module):
    """``context`` is that of one rank alone."""

    def __init__(self, spec: Idefics3Vision, text_hidden_size: int, *, context: LayerContext) -> None:
        super().__init__()
        self._scale = spec.scale
        order = position_order(spec.patches_per_side).to(context.device)
        self.encoder = SiglipEncoder(spec, context=context.below("vision."), position_order=order)
        outs = [Projection("proj", text_hidden_size)]
        shuffled = spec.hidden_size * spec.scale**2
        self.projector = ColumnParallelLinear(shuffled, outs, bias=False, context=context.below("projector."))

    @torch.inference_mode()
    def forward(self, pictures: Sequence[ViewTensors]) -> list[torch.Tensor]:
        """Tiles [k, 3, image_size, image_size] of each picture -> its rows [k * rows of a tile, text hidden size]."""
        return encode_tiles(pictures, self._encode)

    def _encode(self, tiles: torch.Tensor) -> torch.Tensor:
        return self.projector(pixel_shuffle(self.encoder(tiles), self._scale))  # type: ignore[no-any-return]

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


def pixel_shuffle(x: torch.Tensor, scale: int) -> torch.Tensor:
    """[B, side * side, hidden] -> [B, (side / scale) ** 2, hidden * scale * scale]: squares of patches, row by row.

    A row holds its patches row by row.
    """
    batch, patches, hidden = x.shape
    side = round(patches**0.5) // scale
    squares = x.view(batch, side, scale, side, scale, hidden).transpose(2, 3)
    return squares.reshape(batch, side * side, scale * scale * hidden)
