"""CLIP's vision transformer (Radford et al. 2021) up to the feature layer, and LLaVA's projector behind it.

Replicated in every process that uses it. Knows pixels and rows, no image files and no arena.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from mmserve.checkpoint.spec import VisionSpec
from mmserve.model_backend.distributed import TpGroup
from mmserve.model_backend.layers.activation import activation
from mmserve.model_backend.layers.linear import ColumnParallelLinear, RowParallelLinear, empty
from mmserve.model_backend.loader.weights import Target
from mmserve.model_backend.platforms.cpu import kernels

_ALONE = TpGroup()


class Linear(ColumnParallelLinear):
    """One projection, unsplit."""

    def __init__(self, name: str, in_size: int, out_size: int, *, bias: bool = True, like: torch.Tensor) -> None:
        super().__init__(in_size, [(name, out_size)], bias=bias, tp=_ALONE, like=like)


class LayerNorm(nn.Module):
    """Over the last dimension, with weight and bias."""

    def __init__(self, name: str, spec: VisionSpec, *, like: torch.Tensor) -> None:
        super().__init__()
        self._name, self._eps = name, spec.layer_norm_eps
        self.weight, self.bias = empty(spec.hidden_size, like=like), empty(spec.hidden_size, like=like)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if kernels.usable(x) and x.shape[-1] % 8 == 0:
            return kernels.layer_norm(x, self.weight, self.bias, self._eps)
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self._eps)

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        shape = tuple(self.weight.shape)
        yield f"{prefix}{self._name}.weight", Target(self.weight, shape)
        yield f"{prefix}{self._name}.bias", Target(self.bias, shape)


class PatchEmbedding(nn.Module):
    """Pixels [B, 3, H, W] -> [B, 1 + patches, hidden]: class token, patches row by row, learned positions."""

    def __init__(self, spec: VisionSpec, *, like: torch.Tensor) -> None:
        super().__init__()
        num_patches = (spec.image_size // spec.patch_size) ** 2
        self._stride = spec.patch_size
        self.class_token = empty(spec.hidden_size, like=like)
        self.patches = empty(spec.hidden_size, 3, spec.patch_size, spec.patch_size, like=like)
        self.positions = empty(num_patches + 1, spec.hidden_size, like=like)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        patches = F.conv2d(pixels, self.patches, stride=self._stride).flatten(2).transpose(1, 2)
        first = self.class_token.expand(pixels.shape[0], 1, -1)
        return torch.cat((first, patches), dim=1) + self.positions

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        for name, parameter in (
            ("class_embedding", self.class_token),
            ("patch_embedding.weight", self.patches),
            ("position_embedding.weight", self.positions),
        ):
            yield prefix + name, Target(parameter, tuple(parameter.shape))


class EncoderLayer(nn.Module):
    """Bidirectional attention and MLP, each behind a norm and added to the residual stream."""

    def __init__(self, spec: VisionSpec, *, like: torch.Tensor) -> None:
        super().__init__()
        size, inner = spec.hidden_size, spec.intermediate_size
        self._num_heads, self._act = spec.num_heads, activation(spec.activation)
        self.attention_norm = LayerNorm("layer_norm1", spec, like=like)
        outs = [(name, size) for name in ("q_proj", "k_proj", "v_proj")]
        self.qkv = ColumnParallelLinear(size, outs, bias=True, tp=_ALONE, like=like)
        self.out = RowParallelLinear("out_proj", size, size, bias=True, tp=_ALONE, like=like)
        self.mlp_norm = LayerNorm("layer_norm2", spec, like=like)
        self.up = Linear("fc1", size, inner, like=like)
        self.down = RowParallelLinear("fc2", inner, size, bias=True, tp=_ALONE, like=like)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[B, patches, hidden], in place."""
        self.out(self._attend(self.qkv(self.attention_norm(x))), onto=x)
        return self.down(self._act(self.up(self.mlp_norm(x))), onto=x)  # type: ignore[no-any-return]

    def _attend(self, qkv: torch.Tensor) -> torch.Tensor:
        """[B, patches, 3 * hidden] -> [B, patches, hidden]."""
        batch, tokens, width = qkv.shape
        if kernels.usable(qkv) and width // 3 // self._num_heads % kernels.PANEL == 0:
            return kernels.encoder_attention(qkv, self._num_heads)
        q, k, v = qkv.view(batch, tokens, 3, self._num_heads, -1).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    def targets(self, prefix: str) -> Iterator[tuple[str, Target]]:
        for norm in (self.attention_norm, self.mlp_norm):
            yield from norm.targets(prefix)
        for attention_part in (self.qkv, self.out):
            yield from attention_part.targets(f"{prefix}self_attn.")
        for mlp_part in (self.up, self.down):
            yield from mlp_part.targets(f"{prefix}mlp.")


class Projector(nn.Module):
    """LLaVA-1.5's two-layer MLP: vision features -> the language model's embedding space."""

    def __init__(self, spec: VisionSpec, text_hidden_size: int, *, like: torch.Tensor) -> None:
        super().__init__()
        bias = spec.projector_bias
        self._act = activation(spec.projector_activation)
        self.first = Linear("linear_1", spec.hidden_size, text_hidden_size, bias=bias, like=like)
        self.second = Linear("linear_2", text_hidden_size, text_hidden_size, bias=bias, like=like)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.second(self._act(self.first(features)))  # type: ignore[no-any-return]

    def targets(self) -> Iterator[tuple[str, Target]]:
        yield from self.first.targets("projector.")
        yield from self.second.targets("projector.")


class VisionTower(nn.Module):
    """Tower and projector; only the layers up to the feature layer exist. ``like`` gives dtype and device."""

    def __init__(self, spec: VisionSpec, text_hidden_size: int, *, like: torch.Tensor) -> None:
        super().__init__()
        self._spec = spec
        self.embedding = PatchEmbedding(spec, like=like)
        self.pre_norm = LayerNorm("pre_layrnorm", spec, like=like)
        self.layers = nn.ModuleList(EncoderLayer(spec, like=like) for _ in range(num_layers_needed(spec)))
        self.projector = Projector(spec, text_hidden_size, like=like)

    @property
    def device(self) -> torch.device:
        return self.embedding.positions.device

    @torch.inference_mode()
    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Normalised pixels [B, 3, image_size, image_size], any float dtype -> rows [B, num_image_tokens, hidden]."""
        x = self.pre_norm(self.embedding(pixels.to(self.device, self.embedding.positions.dtype)))
        for layer in self.layers:
            x = layer(x)
        if self._spec.select_strategy == "default":
            x = x[:, 1:]
        return self.projector(x)  # type: ignore[no-any-return]

    def targets(self) -> dict[str, Target | None]:
        """Canonical tensor name -> parameter; None for tensors behind the feature layer."""
        found: dict[str, Target | None] = dict(self.embedding.targets("vision.embeddings."))
        found.update(self.pre_norm.targets("vision."))
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, EncoderLayer)
            found.update(layer.targets(f"vision.encoder.layers.{index}."))
        found.update(self.projector.targets())
        found.update(dict.fromkeys(("vision.post_layernorm.weight", "vision.post_layernorm.bias")))
        pattern = EncoderLayer(self._spec, like=torch.empty(0, device="meta"))
        for index in range(len(self.layers), self._spec.num_layers):
            found.update(dict.fromkeys(name for name, _ in pattern.targets(f"vision.encoder.layers.{index}.")))
        return found


def num_layers_needed(spec: VisionSpec) -> int:
    """Layers before the feature layer's output, which counts the embeddings as entry 0 and may count from the end."""
    return spec.feature_layer if spec.feature_layer >= 0 else spec.num_layers + 1 + spec.feature_layer
