"""Gemma 3's vision tower: SigLIP, then the mean of each square of patches, an RMSNorm and a projection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from mmserve.checkpoint.vision.gemma3 import Gemma3Vision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear import ColumnParallelLinear, Projection
from mmserve.model_backend.layers.target import Target
from mmserve.model_backend.vision.interface import ViewTensors
from mmserve.model_backend.vision.parts.siglip import SiglipEncoder
from mmserve.model_backend.vision.parts.tiles import encode_tiles


class Gemma3Tower(nn.Module):
    """Tower and projector. ``context`` is that of one rank alone."""

    def __init__(self, spec: Gemma3Vision, text_hidden_size: int, *, context: LayerContext) -> None:
        super().__init__()
        self._spec, self._ops = spec, context.ops
        self.encoder = SiglipEncoder(spec, context=context.below("vision."))
        self.norm_weight = context.empty(spec.hidden_size)
        outs = [Projection("mm_input_projection", text_hidden_size)]
        projector = context.below("projector.")
        self.projection = ColumnParallelLinear(spec.hidden_size, outs, bias=False, context=projector)

    @torch.inference_mode()
    def forward(self, pictures: Sequence[ViewTensors]) -> list[torch.Tensor]:
        """Pictures of views [k, 3, image_size, image_size] -> rows [k * rows_per_side^2, text hidden] of each."""
        return encode_tiles(pictures, self._encode)

    def _encode(self, tiles: torch.Tensor) -> torch.Tensor:
        features, rows = self.encoder(tiles), self._spec.rows_per_side
        size = self._spec.patches_per_side // rows
        means = features.view(len(tiles), rows, size, rows, size, -1).mean(dim=(2, 4)).flatten(0, 2)
        # As in Gemma's language model, the norm's weight is stored less its offset and applied in float32.
        weight = self._spec.norm_offset + self.norm_weight.float()
        normed = self._ops.rms_norm(means.float(), weight, self._spec.layer_norm_eps)
        return self.projection(normed.to(means.dtype)).view(len(tiles), rows * rows, -1)  # type: ignore[no-any-return]

    def targets(self) -> dict[str, Target | None]:
        found = dict(self.encoder.targets())
        found["projector.mm_soft_emb_norm.weight"] = Target(self.norm_weight, tuple(self.norm_weight.shape))
        for name, target in self.projection.targets():
            # Stored as [in, out].
            found[name] = replace(target, into=target.into.T, shape=target.shape[::-1])
        return found
