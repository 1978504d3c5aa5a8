"""The vision tower of Qwen2.5-VL (Bai et al. 2025): Qwen2-VL's with windows, RMSNorm and gated MLPs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from mmserve.checkpoint.vision.qwen_vl import Qwen25Vision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.mlp import GatedMlp
from mmserve.model_backend.layers.norm import RmsNorm
from mmserve.model_backend.layers.target import Target
from mmserve.model_backend.vision.interface import ViewTensors
from mmserve.model_backend.vision.parts import patch_grids
from mmserve.model_backend.vision.parts.qwen_layers import (
    EncoderLayer,
    Merger,
    angles_of,
    joined_patches,
    patch_embedding,
    targets_of,
)


class Qwen25VisionTower(nn.Module):
    """See ``interface.Tower``. ``context`` is that of one rank alone."""

    def __init__(self, spec: Qwen25Vision, text_hidden_size: int, *, context: LayerContext) -> None:
        super().__init__()
        self._spec, self._device, self._dtype = spec, context.device, context.dtype
        context = context.below("vision.")
        self.embedding = patch_embedding(spec, bias=False, context=context)
        self.layers = nn.ModuleList(_layer(spec, context.below(f"blocks.{index}.")) for index in range(spec.num_layers))
        merger = context.below("merger.")
        norm = RmsNorm("ln_q", spec.hidden_size, spec.layer_norm_eps, context=merger)
        self.merger = Merger(spec, norm, "mlp.0", "mlp.2", text_hidden_size, context=merger)

    @torch.inference_mode()
    def forward(self, pictures: Sequence[ViewTensors]) -> list[torch.Tensor]:
        """Between embedding and merger the squares lie window by window."""
        spec = self._spec
        patches, grids, counts = joined_patches(pictures, spec)
        merge, square = spec.merge_size, spec.patches_per_row
        merged = [(frames, rows // merge, columns // merge) for frames, rows, columns in grids]
        order, windows = patch_grids.window_order(merged, spec.window_squares)
        window_lengths, frame_lengths = [square * count for count in windows], patch_grids.frame_lengths(grids)
        positions = patch_grids.patch_positions(grids, merge).view(-1, square, 2)[order].view(-1, 2)
        angles = angles_of(positions, spec, self._device)
        order = order.to(self._device)
        embedded = self.embedding(patches.to(self._device, self._dtype))
        x = embedded.view(len(order), square, -1)[order].view(len(embedded), -1)
        for index, layer in enumerate(self.layers):
            x = layer(x, frame_lengths if index in spec.full_attention_layers else window_lengths, angles)
        rows = self.merger(x)
        return list(torch.split(torch.empty_like(rows).index_copy_(0, order, rows), counts))

    def targets(self) -> dict[str, Target | None]:
        return targets_of(self.embedding, *self.layers, self.merger)


def _layer(spec: Qwen25Vision, context: LayerContext) -> EncoderLayer:
    return EncoderLayer(spec, RmsNorm, GatedMlp(spec, context=context.below("mlp.")), context=context)
