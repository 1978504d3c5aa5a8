"""Pixtral's vision transformer (Agrawal et al. 2024) and the projectors behind it: patches of any picture -> rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from mmserve.checkpoint.vision.pixtral import Pixtral
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear import ColumnParallelLinear, Projection, RowParallelLinear
from mmserve.model_backend.layers.norm import RmsNorm
from mmserve.model_backend.layers.target import Target
from mmserve.model_backend.vision.interface import ViewTensors, grids_of, joined
from mmserve.model_backend.vision.parts.feed_forward import feed_forward
from mmserve.model_backend.vision.parts.patch_grids import Angles, Grid, interleaved_angles, patch_positions
from mmserve.model_backend.vision.parts.projector import Projector
from mmserve.model_backend.vision.parts.tiles import space_to_depth


class Layer(nn.Module):
    """Bidirectional attention and a gated MLP, each behind an RMSNorm and added to the residual stream."""

    def __init__(self, spec: Pixtral, *, context: LayerContext) -> None:
        super().__init__()
        size, inner, eps = spec.hidden_size, spec.intermediate_size, spec.layer_norm_eps
        self._num_heads, self._ops = spec.num_heads, context.ops
        attention, mlp = context.below("attention."), context.below("feed_forward.")
        self.attention_norm = RmsNorm("attention_norm", size, eps, context=context)
        outs = [Projection(name, size) for name in ("q_proj", "k_proj", "v_proj")]
        self.qkv = ColumnParallelLinear(size, outs, bias=False, context=attention)
        self.out = RowParallelLinear("o_proj", size, size, bias=False, context=attention)
        self.mlp_norm = RmsNorm("ffn_norm", size, eps, context=context)
        gate_up = [Projection("gate_proj", inner), Projection("up_proj", inner)]
        self.gate_up = ColumnParallelLinear(size, gate_up, bias=False, context=mlp)
        self.down = RowParallelLinear("down_proj", inner, size, bias=False, context=mlp)
        parts = (self.mlp_norm, self.gate_up, spec.activation, self.down)
        self._feed_forward = feed_forward(*parts, gated=True, context=context)

    def forward(self, x: torch.Tensor, lengths: Sequence[int], angles: Angles) -> None:
        """[T, hidden], in place. The rows are pictures of these lengths; ``angles`` turn queries and keys."""
        qkv = self.qkv(self.attention_norm(x))
        heads = qkv.view(len(x), 3 * self._num_heads, -1)
        self._ops.rotary_(heads[:, : 2 * self._num_heads], *angles)
        self.out(self._ops.encoder_attention(qkv, self._num_heads, lengths), x)
        self._feed_forward(x)

    def targets(self) -> Iterator[tuple[str, Target]]:
        for part in (self.attention_norm, self.qkv, self.out, self.mlp_norm, self.gate_up, self.down):
            yield from part.targets()


class PatchMerger(nn.Module):
    """RMSNorm, then blocks of neighbouring patches -> one patch of the same width."""

    def __init__(self, spec: Pixtral, merge_size: int, *, context: LayerContext) -> None:
        super().__init__()
        size, self._merge_size = spec.hidden_size, merge_size
        self.norm = RmsNorm("norm", size, spec.projector_norm_eps, context=context)
        outs = [Projection("patch_merger.merging_layer", size)]
        self.merge = ColumnParallelLinear(size * merge_size**2, outs, bias=False, context=context)

    def forward(self, features: torch.Tensor, grids: Sequence[Grid]) -> torch.Tensor:
        """[T, hidden] of pictures with these grids of patches -> [T / merge_size^2, hidden]."""
        parts = torch.split(self.norm(features), [rows * columns for _, rows, columns in grids])
        pairs = zip(parts, grids, strict=True)
        blocks = torch.cat([space_to_depth(part[None], *grid[1:], self._merge_size)[0] for part, grid in pairs])
        # The layer reads a block channel by channel.
        by_channel = blocks.view(len(blocks), -1, features.shape[1]).transpose(1, 2).flatten(1)
        return self.merge(by_channel)  # type: ignore[no-any-return]

    def targets(self) -> Iterator[tuple[str, Target]]:
        yield from self.norm.targets()
        yield from self.merge.targets()


class PixtralTower(nn.Module):
    """Tower and projector. ``context`` is that of one rank alone."""

    def __init__(self, spec: Pixtral, text_hidden_size: int, *, context: LayerContext) -> None:
        super().__init__()
        size, vision, projector = spec.hidden_size, context.below("vision."), context.below("projector.")
        outs = [Projection("patch_conv", size)]
        self.patch_embedding = ColumnParallelLinear(3 * spec.patch_size**2, outs, bias=False, context=vision)
        self.first_norm = RmsNorm("ln_pre", size, spec.layer_norm_eps, context=vision)
        self.layers = nn.ModuleList(
            Layer(spec, context=vision.below(f"transformer.layers.{index}.")) for index in range(spec.num_layers)
        )
        self.merger = None if spec.merge_size is None else PatchMerger(spec, spec.merge_size, context=projector)
        self.projector = Projector(
            size,
            text_hidden_size,
            text_hidden_size,
            activation=spec.projector_activation,
            bias=spec.projector_bias,
            context=projector,
        )
        self._head_dim, self._rope_theta = size // spec.num_heads, spec.rope_theta

    @torch.inference_mode()
    def forward(self, pictures: Sequence[ViewTensors]) -> list[torch.Tensor]:
        """Pictures of one view, patches row by row -> rows [height * width / merge_size^2, text hidden] of each."""
        patches, lengths = joined(pictures)
        grids = grids_of(pictures)
        x = self.first_norm(self.patch_embedding(patches.to(self.first_norm.weight)))
        cos, sin = interleaved_angles(patch_positions(grids, 1), self._head_dim, self._rope_theta)
        for layer in self.layers:
            layer(x, lengths, (cos.to(x), sin.to(x)))
        if self.merger is not None:
            x = self.merger(x, grids)
        rows = self.projector(x)
        shrink = len(patches) // len(rows)
        return list(torch.split(rows, [length // shrink for length in lengths]))

    def targets(self) -> dict[str, Target | None]:
        found: dict[str, Target | None] = {}
        for part in (self.patch_embedding, self.first_norm, *self.layers, self.merger, self.projector):
            found.update({} if part is None else part.targets())
        return found
