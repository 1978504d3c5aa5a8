"""SigLIP's vision transformer (Zhai et al. 2023), without its pooling head: the encoder of several families' towers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from mmserve.checkpoint.vision.siglip import SiglipSpec
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear import ColumnParallelLinear, Projection
from mmserve.model_backend.layers.norm import LayerNorm
from mmserve.model_backend.layers.target import Target
from mmserve.model_backend.vision.parts.encoder_layer import EncoderLayer
from mmserve.model_backend.vision.parts.patch_grids import Angles
from mmserve.model_backend.vision.parts.tiles import patches_of

_HEAD = ("attention.in_proj_", "attention.out_proj.", "layernorm.", "mlp.fc1.", "mlp.fc2.")
_UNUSED = (
    "head.probe",
    *(f"head.{part}{kind}" for part in _HEAD for kind in ("weight", "bias")),
    "embeddings.packing_position_embedding.weight",
)
"""Tensors that checkpoints may store although nothing here uses them."""


class SiglipEncoder(nn.Module):
    """Tiles -> the features of their patches. ``context``: of one rank alone; tensor names begin with its prefix.

    ``has_last_norm``: false if the features are the last layer's output. ``position_order``: int64 [patches], which
    learned position each patch has; None: its own.
    """

    def __init__(
        self,
        spec: SiglipSpec,
        *,
        has_last_norm: bool = True,
        position_order: torch.Tensor | None = None,
        context: LayerContext,
    ) -> None:
        super().__init__()
        self._spec, self._prefix, size = spec, context.prefix, spec.hidden_size
        self._position_order = position_order
        embeddings = context.below("embeddings.")
        outs = [Projection("patch_embedding", size)]
        self.patch_embedding = ColumnParallelLinear(3 * spec.patch_size**2, outs, bias=True, context=embeddings)
        self._positions_name = embeddings.prefix + "position_embedding.weight"
        self.positions = context.empty(spec.patches_per_side**2, size)
        self.layers = nn.ModuleList(
            EncoderLayer(spec, context=context.below(f"encoder.layers.{index}.")) for index in range(spec.num_layers)
        )
        self.last_norm = None
        if has_last_norm:
            self.last_norm = LayerNorm("post_layernorm", size, spec.layer_norm_eps, context=context)

    def forward(self, tiles: torch.Tensor) -> torch.Tensor:
        """Normalised pixels [B, 3, image_size, image_size] -> [B, patches, hidden], row by row."""
        batch, (tokens, hidden) = len(tiles), self.positions.shape
        patches = self.patch_embedding(patches_of(tiles.to(self.positions), self._spec.patch_size))
        positions = self.positions if self._position_order is None else self.positions[self._position_order]
        x = patches.view(batch, tokens, hidden) + positions
        return self.encode(x.flatten(0, 1), [tokens] * batch).view(batch, tokens, hidden)

    def encode(self, x: torch.Tensor, lengths: Sequence[int], angles: Angles | None = None) -> torch.Tensor:
        """Embedded patches with their positions [T, hidden] -> features [T, hidden]. See ``EncoderLayer``."""
        for layer in self.layers:
            layer(x, lengths, angles)
        return x if self.last_norm is None else self.last_norm(x)

    def targets(self) -> Iterator[tuple[str, Target | None]]:
        yield from self.patch_embedding.targets()
        yield self._positions_name, Target(self.positions, tuple(self.positions.shape))
        for layer in self.layers:
            assert isinstance(layer, EncoderLayer)
            yield from layer.targets()
        unused = [*_UNUSED]
        if self.last_norm is None:
            unused += ["post_layernorm.weight", "post_layernorm.bias"]
        else:
            yield from self.last_norm.targets()
        yield from ((self._prefix + name, None) for name in unused)
