"""The vision tower of Qwen3-VL: learned positions resampled to each picture, and DeepStack (Meng et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from mmserve.checkpoint.vision.qwen_vl import Qwen3Vision
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


class Qwen3VisionTower(nn.Module):
    """See ``interface.Tower``. ``context`` is that of one rank alone.

    A row's first stream comes from the last layer, the others from ``deepstack_layers``.
    """

    def __init__(self, spec: Qwen3Vision, text_hidden_size: int, *, context: LayerContext) -> None:
        super().__init__()
        self._spec, self._device, self._dtype = spec, context.device, context.dtype
        context = context.below("vision.")
        self.embedding = patch_embedding(spec, bias=True, context=context)
        self._positions_name = context.prefix + "pos_embed.weight"
        self.positions = context.empty(spec.positions_per_side**2, spec.hidden_size)
        self.layers = nn.ModuleList(_layer(spec, context.below(f"blocks.{index}.")) for index in range(spec.num_layers))
        self.merger = _merger(spec, spec.hidden_size, text_hidden_size, context.below("merger."))
        square_size = spec.hidden_size * spec.patches_per_row
        self.deepstack_mergers = nn.ModuleList(
            _merger(spec, square_size, text_hidden_size, context.below(f"deepstack_merger_list.{index}."))
            for index in range(len(spec.deepstack_layers))
        )

    @torch.inference_mode()
    def forward(self, pictures: Sequence[ViewTensors]) -> list[torch.Tensor]:
        spec = self._spec
        patches, grids, counts = joined_patches(pictures, spec)
        positions = patch_grids.patch_positions(grids, spec.merge_size)
        angles = angles_of(positions, spec, self._device)
        lengths = patch_grids.frame_lengths(grids)
        x = self.embedding(patches.to(self._device, self._dtype))
        square = self.positions.view(spec.positions_per_side, spec.positions_per_side, -1)
        x += patch_grids.resampled(square, grids, spec.merge_size).to(x.dtype)
        streams: list[torch.Tensor] = []
        for index, layer in enumerate(self.layers):
            x = layer(x, lengths, angles)
            if index in spec.deepstack_layers:
                streams.append(self.deepstack_mergers[len(streams)](x))
        return list(torch.split(torch.cat([self.merger(x), *streams], dim=1), counts))

    def targets(self) -> dict[str, Target | None]:
        found = targets_of(self.embedding, *self.layers, self.merger, *self.deepstack_mergers)
        found[self._positions_name] = Target(self.positions, tuple(self.positions.shape))
        return found


def _layer(spec: Qwen3Vision, context: LayerContext) -> EncoderLayer:
    mlp = Mlp(spec, "linear_fc1", "linear_fc2", context=context.below("mlp."))
    return EncoderLayer(spec, LayerNorm, mlp, context=context)


def _merger(spec: Qwen3Vision, norm_size: int, out_size: int, context: LayerContext) -> Merger:
    norm = LayerNorm("norm", norm_size, spec.layer_norm_eps, context=context)
    return Merger(spec, norm, "linear_fc1", "linear_fc2", out_size, context=context)
