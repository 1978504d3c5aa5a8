"""The network in plain torch, shaped exactly like transformers' CLIP vision tower, LLaVA projector and Llama.

Parameter names follow LLaVA-1.5's classic checkpoint, so that export is a copy.  Shapes: B rows, P = 64 patches,
L tokens, D width.  It knows nothing about data; `training.export` proves that transformers computes the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training.pictures.world import GRID, SIDE, VOCABULARY


@dataclass(frozen=True)
class Shape:
    """Sizes of the packaged model."""

    vision_layers: int = 7  # the last one counts, see training.stages.tally
    vision_width: int = 192
    vision_heads: int = 4
    layers: int = 4
    width: int = 256
    heads: int = 4
    feed_forward: int = 704
    vocabulary: int = VOCABULARY
    theta: float = 10000.0


SHAPE = Shape()


class Attention(nn.Module):
    """Bidirectional CLIP attention with biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class VisionLayer(nn.Module):
    """Pre-norm attention and quick-gelu MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.self_attn = Attention(width, heads)
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, 4 * width), "fc2": nn.Linear(4 * width, width)})

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = x + self.self_attn(self.layer_norm1(x))
        hidden = self.mlp["fc1"](self.layer_norm2(x))
        return x + self.mlp["fc2"](hidden * torch.sigmoid(1.702 * hidden))


def plane_waves(width: int) -> Tensor:
    """(1 + P, width) sine and cosine of row and column; the class token's row is zero."""
    steps = torch.arange(GRID).float()
    rates = 1.0 / 30 ** (torch.arange(width // 4) / (width // 4))
    angles = steps[:, None] * rates[None] * 1.5
    line = torch.cat([angles.sin(), angles.cos()], 1) * 0.5
    plane = torch.cat([line[None].expand(GRID, -1, -1), line[:, None].expand(-1, GRID, -1)], 2)
    return torch.cat([torch.zeros(1, width), plane.reshape(GRID * GRID, width)])


class Embeddings(nn.Module):
    """Patch, class and position embeddings; the patch weight is a linear layer over (channel, row, column)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.class_embedding = nn.Parameter(torch.randn(width) * 0.1)
        self.patch_embedding = nn.Linear(3 * (SIDE // GRID) ** 2, width, bias=False)
        self.position_embedding = nn.Embedding(1 + GRID * GRID, width)
        self.position_embedding.weight.data.copy_(plane_waves(width))

    def forward(self, patches: Tensor) -> Tensor:
        """(B, P, 768) -> (B, 1 + P, D)."""
        first = self.class_embedding.expand(patches.shape[0], 1, -1)
        return torch.cat([first, self.patch_embedding(patches)], 1) + self.position_embedding.weight


class Vision(nn.Module):
    """The CLIP vision model up to the last layer's output (no final norm, as LLaVA takes it)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.vision_width
        self.embeddings = Embeddings(width)
        self.pre_layrnorm = nn.LayerNorm(width)
        layers = [VisionLayer(width, shape.vision_heads) for _ in range(shape.vision_layers)]
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(layers)})
        self.post_layernorm = nn.LayerNorm(width)  # in the checkpoint, unused for patch features

    def forward(self, patches: Tensor) -> Tensor:
        """(B, P, 768) -> (B, P, D) without the class token."""
        x = self.pre_layrnorm(self.embeddings(patches))
        for layer in self.encoder["layers"]:  # type: ignore[union-attr]
            x = layer(x)
        return x[:, 1:]


class Projector(nn.Module):
    """Two linear layers with gelu between them."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(shape.vision_width, shape.width)
        self.linear_2 = nn.Linear(shape.width, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, P, vision width) -> (B, P, text width)."""
        return self.linear_2(F.gelu(self.linear_1(x)))


class Eye(nn.Module):
    """Vision tower and projector under their checkpoint names."""

    def __init__(self, shape: Shape = SHAPE) -> None:
        super().__init__()
        self.vision_tower = nn.ModuleDict({"vision_model": Vision(shape)})
        self.multi_modal_projector = Projector(shape)

    def forward(self, patches: Tensor) -> tuple[Tensor, Tensor]:
        """(B, P, 768) -> vision features (B, P, Dv) and picture tokens (B, P, D)."""
        features = self.vision_tower["vision_model"](patches)
        return features, self.multi_modal_projector(features)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Llama's rotary embedding: (B, H, L, d) with (B, 1, L, d) tables."""
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class TextLayer(nn.Module):
    """One Llama layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, width, hidden = shape.heads, shape.width, shape.feed_forward
        self.self_attn = nn.ModuleDict(
            {name: nn.Linear(width, width, bias=False) for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
        )
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(width, hidden, bias=False),
                "up_proj": nn.Linear(width, hidden, bias=False),
                "down_proj": nn.Linear(hidden, width, bias=False),
            }
        )
        self.input_layernorm = nn.RMSNorm(width, eps=1e-5)
        self.post_attention_layernorm = nn.RMSNorm(width, eps=1e-5)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor) -> Tensor:
        """(B, L, D), tables (B, 1, L, d), mask (B, 1, L, L) true where attended -> (B, L, D)."""
        y, attn = self.input_layernorm(x), self.self_attn
        q, k, v = (attn[n](y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for n in ("q_proj", "k_proj", "v_proj"))
        mixed = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, attn_mask=mask)
        x = x + attn["o_proj"](mixed.transpose(1, 2).flatten(2))
        y, mlp = self.post_attention_layernorm(x), self.mlp
        return x + mlp["down_proj"](F.silu(mlp["gate_proj"](y)) * mlp["up_proj"](y))


class Text(nn.Module):
    """The Llama model and its head, under LLaVA-1.5's names when nested as `language_model`."""

    def __init__(self, shape: Shape = SHAPE) -> None:
        super().__init__()
        self.shape = shape
        self.model = nn.ModuleDict(
            {
                "embed_tokens": nn.Embedding(shape.vocabulary, shape.width),
                "layers": nn.ModuleList([TextLayer(shape) for _ in range(shape.layers)]),
                "norm": nn.RMSNorm(shape.width, eps=1e-5),
            }
        )
        self.lm_head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        nn.init.normal_(self.model["embed_tokens"].weight, std=0.15)  # type: ignore[arg-type]
        for layer in self.model["layers"]:  # type: ignore[union-attr]
            for weight in (layer.self_attn["o_proj"].weight, layer.mlp["down_proj"].weight):
                nn.init.normal_(weight, std=0.01)

    def tables(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """(B, L) positions -> cosine and sine tables (B, 1, L, d)."""
        size = self.shape.width // self.shape.heads
        rates = self.shape.theta ** (-torch.arange(0, size, 2, device=positions.device).float() / size)
        angles = positions[:, None, :, None].float() * rates
        return torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()

    def embed(self, tokens: Tensor) -> Tensor:
        """(B, L) ids -> (B, L, D)."""
        return self.model["embed_tokens"](tokens)

    def forward(self, x: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Embedded rows (B, L, D) -> normed hidden states (B, L, D); the head is applied by the caller."""
        cos, sin = self.tables(positions)
        for layer in self.model["layers"]:  # type: ignore[union-attr]
            x = layer(x, cos, sin, mask)
        return self.model["norm"](x)
