"""InternViT (Chen et al. 2023) and InternVL's projector: tiles -> image rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from mmserve.checkpoint.vision.internvit import InternVit
from mmserve.model_backend.layers.context import LayerContext
from mmserve.model_backend.layers.linear import ColumnParallelLinear, Projection
from mmserve.model_backend.layers.norm import LayerNorm, RmsNorm
from mmserve.model_backend.layers.target import Target
from mmserve.model_backend.vision.interface import ViewTensors
from mmserve.model_backend.vision.parts.feed_forward import feed_forward
from mmserve.model_backend.vision.parts.projector import Projector
from mmserve.model_backend.vision.parts.self_attention import self_attention
from mmserve.model_backend.vision.parts.tiles import encode_tiles, patches_of, space_to_depth

_PROJECTOR_NORM_EPS = 1e-5


class Embeddings(nn.Module):
    """Pixels [B, 3, image_size, image_size] -> [B, 1 + patches, hidden]: class token, patches row by row, positions."""

    def __init__(self, spec: InternVit, *, context: LayerContext) -> None:
        super().__init__()
        size, self._patch_size, self._prefix = spec.hidden_size, spec.patch_size, context.prefix
        outs = [Projection("patch_embeddings.projection", size)]
        self.projection = ColumnParallelLinear(3 * spec.patch_size**2, outs, bias=True, context=context)
        self.class_token = context.empty(1, 1, size)
        self.positions = context.empty(1, spec.patches_per_side**2 + 1, size)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        batch, (_, tokens, hidden) = len(pixels), self.positions.shape
        patches = self.projection(patches_of(pixels.to(self.positions), self._patch_size))
        first = self.class_token.expand(batch, 1, hidden)
        return torch.cat((first, patches.view(batch, tokens - 1, hidden)), dim=1) + self.positions

    def targets(self) -> Iterator[tuple[str, Target]]:
        yield from self.projection.targets()
        for name, parameter in (("cls_token", self.class_token), ("position_embeddings", self.positions)):
            yield self._prefix + name, Target(parameter, tuple(parameter.shape))


class Layer(nn.Module):
    """Bidirectional attention and MLP, each behind a norm, scaled per channel and added to the residual stream."""

    def __init__(self, spec: InternVit, *, context: LayerContext) -> None:
        super().__init__()
        size, inner, eps = spec.hidden_size, spec.intermediate_size, spec.layer_norm_eps
        self._num_heads, self._ops, self._prefix = spec.num_heads, context.ops, context.prefix
        norm = RmsNorm if spec.rms_norm else LayerNorm
        attention, mlp = context.below("attention."), context.below("mlp.")
        names = ["qkv"] if spec.fused_qkv else ["q_proj", "k_proj", "v_proj"]
        outs = [Projection(name, 3 * size // len(names)) for name in names]
        self.attention_norm = norm("layernorm_before", size, eps, context=context)
        self.qkv = ColumnParallelLinear(size, outs, bias=spec.qkv_bias, context=attention)
        qk_eps, norms = spec.qk_norm_eps, ("q_norm", "k_norm")
        self.q_norm, self.k_norm = (
            None if qk_eps is None else RmsNorm(name, size, qk_eps, context=attention) for name in norms
        )
        self.out = ColumnParallelLinear(size, [Projection("projection_layer", size)], bias=True, context=attention)
        self.mlp_norm = norm("layernorm_after", size, eps, context=context)
        self.up = ColumnParallelLinear(size, [Projection("fc1", inner)], bias=True, context=mlp)
        self.down = ColumnParallelLinear(inner, [Projection("fc2", size)], bias=True, context=mlp)
        self.scales = context.empty(2, size)
        self._self_attention = self_attention(
            self.attention_norm, self.qkv, spec.num_heads, self.out, scale=self.scales[0], context=context
        )
        parts = (self.mlp_norm, self.up, spec.activation, self.down)
        self._feed_forward = feed_forward(*parts, scale=self.scales[1], context=context)

    def forward(self, x: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """[T, hidden], in place. The rows are sequences of these lengths."""
        if self.q_norm is None or self.k_norm is None:
            self._self_attention(x, lengths)
        else:
            self._normed_attention(x, lengths, self.q_norm, self.k_norm)
        self._feed_forward(x)
        return x

    def _normed_attention(self, x: torch.Tensor, lengths: Sequence[int], q_norm: RmsNorm, k_norm: RmsNorm) -> None:
        qkv = self.qkv(self.attention_norm(x))
        # Over all heads at once.
        whole = qkv.view(len(qkv), 3, -1)
        q_norm.heads_(whole[:, :1])
        k_norm.heads_(whole[:, 1:2])
        attended = self._ops.encoder_attention(qkv, self._num_heads, lengths)
        self._ops.add_scaled_(x, self.out(attended), self.scales[0])

    def targets(self) -> Iterator[tuple[str, Target]]:
        parts = (self.attention_norm, self.qkv, self.q_norm, self.k_norm, self.out, self.mlp_norm, self.up, self.down)
        for part in parts:
            yield from () if part is None else part.targets()
        for name, scale in zip(("lambda_1", "lambda_2"), self.scales, strict=True):
            yield self._prefix + name, Target(scale, tuple(scale.shape))


class InternVitTower(nn.Module):
    """Tower and projector. ``context`` is that of one rank alone."""

    def __init__(self, spec: InternVit, text_hidden_size: int, *, context: LayerContext) -> None:
        super().__init__()
        self._spec, vision = spec, context.below("vision.")
        self.embeddings = Embeddings(spec, context=vision.below("embeddings."))
        self.layers = nn.ModuleList(
            Layer(spec, context=vision.below(f"encoder.layer.{index}.")) for index in range(spec.num_layers)
        )
        projector, size = context.below("projector."), spec.hidden_size * spec.merge_size**2
        self.projector_norm = LayerNorm("layer_norm", size, _PROJECTOR_NORM_EPS, context=projector)
        self.projector = Projector(
            size,
            text_hidden_size,
            text_hidden_size,
            activation=spec.projector_activation,
            bias=True,
            context=projector,
        )

    @torch.inference_mode()
    def forward(self, pictures: Sequence[ViewTensors]) -> list[torch.Tensor]:
        """Pictures of some tiles [k, 3, image_size, image_size] -> rows [k * rows_per_tile, text hidden] of each."""
        return encode_tiles(pictures, self._encode)

    def _encode(self, tiles: torch.Tensor) -> torch.Tensor:
        x = self.embeddings(tiles)
        batch, tokens, _ = x.shape
        for layer in self.layers:
            layer(x.view(batch * tokens, -1), [tokens] * batch)
        side = self._spec.patches_per_side
        blocks = space_to_depth(x[:, 1:], side, side, self._spec.merge_size)
        return self.projector(self.projector_norm(blocks))  # type: ignore[no-any-return]

    def targets(self) -> dict[str, Target | None]:
        found: dict[str, Target | None] = {}
        for part in (self.embeddings, *self.layers, self.projector_norm, self.projector):
            found.update(part.targets())
        return found
