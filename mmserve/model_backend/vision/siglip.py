"""SigLIP's vision transformer (Zhai et al. 2023), without its pooling head: the encoder of several families' towers."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from mmserve.checkpoint.vision.siglip import SiglipSpec
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear import ColumnParallelLinear, Projection
from mmserve.model_backend.layers.norm import LayerNorm
from mmserve.model_backend.layers.target import Target
from mmserve.model_backend.vision.encoder_layer import EncoderLayer
from mmserve.model_backend.vision.patches import patches_of


class SiglipEncoder(nn.Module):
    """Tiles -> the features of their patches. ``context``: of one rank alone; tensor names begin with its prefix."""

    def __init__(self, spec: SiglipSpec, *, context: LayerContext) -> None:
        super().__init__()
        self._spec, size = spec, spec.hidden_size
        embeddings = context.below("embeddings.")
        outs = [Projection("patch_embedding", size)]
        self.patch_embedding = ColumnParallelLinear(3 * spec.patch_size**2, outs, bias=True, context=embeddings)
        self._positions_name = embeddings.prefix + "position_embedding.weight"
        self.positions = context.empty(spec.patches_per_side**2, size)
        self.layers = nn.ModuleList(
            EncoderLayer(spec, context=context.below(f"encoder.layers.{index}.")) for index in range(spec.num_layers)
        )
        self.last_norm = LayerNorm("post_layernorm", size, spec.layer_norm_eps, context=context)

    def forward(self, tiles: torch.Tensor) -> torch.Tensor:
        """Normalised pixels [B, 3, image_size, image_size] -> [B, patches, hidden], row by row."""
        patches = patches_of(tiles.to(self.positions), self._spec.patch_size)
        x = self.patch_embedding(patches).view(len(tiles), *self.positions.shape) + self.positions
        batch, tokens, _ = x.shape
        for layer in self.layers:
            layer(x.view(batch * tokens, -1), [tokens] * batch)
        return self.last_norm(x)  # type: ignore[no-any-return]

    def targets(self) -> Iterator[tuple[str, Target]]:
        yield from self.patch_embedding.targets()
        yield self._positions_name, Target(self.positions, tuple(self.positions.shape))
        for layer in self.layers:
            assert isinstance(layer, EncoderLayer)
            yield from layer.targets()
        yield from self.last_norm.targets()
