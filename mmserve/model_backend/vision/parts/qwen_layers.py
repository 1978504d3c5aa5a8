"""Layers that the vision towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL share. Tensor names are those of checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from mmserve.checkpoint.vision.qwen_vl import Qwen2Vision
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear import ColumnParallelLinear, LinearLayer, Projection, RowParallelLinear
from mmserve.model_backend.layers.mlp import GatedMlp
from mmserve.model_backend.layers.norm import LayerNorm, RmsNorm
from mmserve.model_backend.layers.target import Target
from mmserve.model_backend.vision.interface import ViewTensors, grids_of, joined
from mmserve.model_backend.vision.parts.feed_forward import feed_forward
from mmserve.model_backend.vision.parts.patch_grids import Angles, Grid, axial_angles

Norm = type[LayerNorm] | type[RmsNorm]


class Mlp(nn.Module):
    """Two linear layers with an activation between."""

    def __init__(self, spec: Qwen2Vision, up: str, down: str, *, context: LayerContext) -> None:
        super().__init__()
        outs = [Projection(up, spec.intermediate_size)]
        self.up = ColumnParallelLinear(spec.hidden_size, outs, bias=True, context=context)
        self.down = RowParallelLinear(down, spec.intermediate_size, spec.hidden_size, bias=True, context=context)

    def targets(self) -> Iterator[tuple[str, Target]]:
        yield from self.up.targets()
        yield from self.down.targets()


class EncoderLayer(nn.Module):
    """Attention with 2-D rotary positions, and an MLP; each behind a norm and added to the residual stream."""

    def __init__(self, spec: Qwen2Vision, norm: Norm, mlp: Mlp | GatedMlp, *, context: LayerContext) -> None:
        super().__init__()
        size, eps, attention = spec.hidden_size, spec.layer_norm_eps, context.below("attn.")
        self._num_heads, self._ops = spec.num_heads, context.ops
        self.attention_norm = norm("norm1", size, eps, context=context)
        self.qkv = ColumnParallelLinear(size, [Projection("qkv", 3 * size)], bias=True, context=attention)
        self.out = RowParallelLinear("proj", size, size, bias=True, context=attention)
        self.mlp_norm = norm("norm2", size, eps, context=context)
        self.mlp = mlp
        gated = isinstance(mlp, GatedMlp)
        up = mlp.gate_up if isinstance(mlp, GatedMlp) else mlp.up
        parts = (self.mlp_norm, up, spec.activation, mlp.down)
        self._feed_forward = feed_forward(*parts, gated=gated, context=context)

    def forward(self, x: torch.Tensor, lengths: Sequence[int], angles: Angles) -> torch.Tensor:
        """[T, hidden], in place. A row attends within its sequence; ``lengths`` are those of the sequences."""
        qkv = self.qkv(self.attention_norm(x))
        heads = qkv.view(len(x), 3 * self._num_heads, -1)
        self._ops.rotary_(heads[:, : 2 * self._num_heads], *angles)
        self.out(self._ops.encoder_attention(qkv, self._num_heads, lengths), x)
        self._feed_forward(x)
        return x

    def targets(self) -> Iterator[tuple[str, Target]]:
        for part in (self.attention_norm, self.qkv, self.out, self.mlp_norm, self.mlp):
            yield from part.targets()


class Merger(nn.Module):
    """The patches of each square [T, hidden] -> one row [T / square, out_size], through a norm and two linear layers.

    ``norm`` is over each patch, or over all of a square's patches.
    """

    def __init__(
        self,
        spec: Qwen2Vision,
        norm: LayerNorm | RmsNorm,
        first: str,
        second: str,
        out_size: int,
        *,
        context: LayerContext,
    ) -> None:
        super().__init__()
        self._size = spec.hidden_size * spec.patches_per_row
        self._act = context.ops.activation("gelu")
        self.norm = norm
        self.first = ColumnParallelLinear(self._size, [Projection(first, self._size)], bias=True, context=context)
        self.second = ColumnParallelLinear(self._size, [Projection(second, out_size)], bias=True, context=context)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x.view(-1, len(self.norm.weight))).view(-1, self._size)
        return self.second(self._act(self.first(normed)))  # type: ignore[no-any-return]

    def targets(self) -> Iterator[tuple[str, Target]]:
        for part in (self.norm, self.first, self.second):
            yield from part.targets()


def patch_embedding(spec: Qwen2Vision, *, bias: bool, context: LayerContext) -> ColumnParallelLinear:
    """Patches [T, numbers] -> [T, hidden]. Checkpoints store it as a convolution that steps by whole patches."""
    outs = [Projection("patch_embed.proj", spec.hidden_size)]
    return ColumnParallelLinear(spec.patch_nums, outs, bias=bias, context=context)


def joined_patches(pictures: Sequence[ViewTensors], spec: Qwen2Vision) -> tuple[torch.Tensor, list[Grid], list[int]]:
    """The patches of all pictures, their grids, and how many rows each picture becomes."""
    patches, counts = joined(pictures)
    grids = grids_of(pictures)
    return patches, grids, [count // spec.patches_per_row for count in counts]


def angles_of(positions: torch.Tensor, spec: Qwen2Vision, device: torch.device) -> Angles:
    """Of patches at these positions, computed on the CPU."""
    cos, sin = axial_angles(positions, spec.head_dim, spec.rope_theta)
    return cos.to(device), sin.to(device)


def targets_of(*parts: nn.Module) -> dict[str, Target | None]:
    """Those of all parts of a tower."""
    found: dict[str, Target | None] = {}
    for part in parts:
        assert isinstance(part, LinearLayer | EncoderLayer | Merger)
        found.update(part.targets())
    return found
