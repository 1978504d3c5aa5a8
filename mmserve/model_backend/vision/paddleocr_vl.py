"""PaddleOCR-VL's vision tower (Cui et al. 2025): SigLIP for pictures of any size, and a projector of merged patches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from mmserve.checkpoint.vision.paddleocr_vl import PaddleOcrVision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.norm import LayerNorm
from mmserve.model_backend.layers.target import Target
from mmserve.model_backend.vision.interface import ViewTensors, grids_of, joined
from mmserve.model_backend.vision.parts.patch_grids import axial_angles, patch_positions
from mmserve.model_backend.vision.parts.projector import Projector
from mmserve.model_backend.vision.parts.siglip import SiglipEncoder
from mmserve.model_backend.vision.parts.tiles import space_to_depth

_PROJECTOR_NORM_EPS = 1e-5
_PROJECTOR_ACTIVATION = "gelu"


class PaddleOcrTower(nn.Module):
    """Tower and projector. ``context`` is that of one rank alone."""

    def __init__(self, spec: PaddleOcrVision, text_hidden_size: int, *, context: LayerContext) -> None:
        super().__init__()
        size, projector = spec.hidden_size, context.below("projector.")
        self._spec, self._head_dim = spec, size // spec.num_heads
        self.encoder = SiglipEncoder(spec, context=context.below("vision."))
        self.projector_norm = LayerNorm("pre_norm", size, _PROJECTOR_NORM_EPS, context=projector)
        merged = size * spec.merge_size**2
        self.projector = Projector(
            merged, merged, text_hidden_size, activation=_PROJECTOR_ACTIVATION, bias=True, context=projector
        )

    @torch.inference_mode()
    def forward(self, pictures: Sequence[ViewTensors]) -> list[torch.Tensor]:
        """Pictures of one view, patches row by row -> rows [height * width / merge_size^2, text hidden] of each."""
        patches, lengths = joined(pictures)
        grids = grids_of(pictures)
        positions = torch.cat([self._positions(rows, columns) for _, rows, columns in grids])
        x = self.encoder.patch_embedding(patches.to(positions)) + positions
        cos, sin = axial_angles(patch_positions(grids, 1), self._head_dim, self._spec.rope_theta)
        features = self.projector_norm(self.encoder.encode(x, lengths, (cos.to(x), sin.to(x))))
        pairs = zip(torch.split(features, lengths), grids, strict=True)
        blocks = [space_to_depth(part[None], *grid[1:], self._spec.merge_size)[0] for part, grid in pairs]
        return list(torch.split(self.projector(torch.cat(blocks)), [len(block) for block in blocks]))

    def _positions(self, height: int, width: int) -> torch.Tensor:
        """The square of learned positions, resampled for a grid of patches: [height * width, hidden]."""
        table, side = self.encoder.positions, self._spec.patches_per_side
        square = table.float().view(1, side, side, -1).permute(0, 3, 1, 2)
        resampled = F.interpolate(square, (height, width), mode="bilinear", align_corners=False)
        return resampled[0].flatten(1).t().to(table.dtype)

    def targets(self) -> dict[str, Target | None]:
        found = dict(self.encoder.targets())
        found.update(self.projector_norm.targets())
        found.update(self.projector.targets())
        return found
