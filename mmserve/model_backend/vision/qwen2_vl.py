"""The vision tower of Qwen2-VL (Wang et al. 2024): a transformer over the patches of pictures of any size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from mmserve.checkpoint.vision.qwen_vl import Qwen2Vision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.norm import LayerNorm
from mmserve.model_backend.layers.target import Target
from mmserve.model_backend.vision.interface import ViewTensors
from mmserve.model_backend.vision.parts import patch_grids
from mmserve.model_backend.vision.parts.qwen_layers import (
    EncoderLayer,
    Merger,
    Mlp,
    angles_of,
    joined_patches,
    patch_embedding,
    targets_of,
)


class Qwen2VisionTower(nn.Module):
    """See ``interface.Tower``. ``context`` is that of one rank alone."""

    def __init__(self, spec: Qwen2Vision, text_hidden_size: int, *, context: LayerContext) -> None:
        super().__init__()
        self._spec, self._device, self._dtype = spec, context.device, context.dtype
        context = context.below("vision.")
        self.embedding = patch_embedding(spec, bias=False, context=context)
        self.layers = nn.ModuleList(_layer(spec, context.below(f"blocks.{index}.")) for index in range(spec.num_layers))
        merger = context.below("merger.")
        norm = LayerNorm("ln_q", spec.hidden_size, spec.layer_norm_eps, context=merger)
        self.merger = Merger(spec, norm, "mlp.0", "mlp.2", text_hidden_size, context=merger)

    @torch.inference_mode()
    def forward(self, pictures: Sequence[ViewTensors]) -> list[torch.Tensor]:
        patches, grids, counts = joined_patches(pictures, self._spec)
        positions = patch_grids.patch_positions(grids, self._spec.merge_size)
        angles = angles_of(positions, self._spec, self._device)
        lengths = patch_grids.frame_lengths(grids)
        x = self.embedding(patches.to(self._device, self._dtype))
        for layer in self.layers:
            x = layer(x, lengths, angles)
        return list(torch.split(self.merger(x), counts))

    def targets(self) -> dict[str, Target | None]:
        return targets_of(self.embedding, *self.layers, self.merger)


def _layer(spec: Qwen2Vision, context: LayerContext) -> EncoderLayer:
    return EncoderLayer(spec, LayerNorm, Mlp(spec, "fc1", "fc2", context=context.below("mlp.")), context=context)
