"""The operations of layers in plain torch: for any device and dtype, and the reference for kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F

from mmserve.model_backend.attention.interface import AttentionBackend, AttentionStep
from mmserve.model_backend.layers.linear_method import LinearMethod
from mmserve.model_backend.layers.ops import Activation, Addend, Attended, FeedForward, Multiply, Product, SelfAttention
from mmserve.runtime.errors import StartupError


def quick_gelu(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(1.702 * x)


_ACTIVATIONS: dict[str, Activation] = {
    "silu": F.silu,
    "swish": F.silu,
    "relu": F.relu,
    "gelu": F.gelu,
    "quick_gelu": quick_gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(F.gelu, approximate="tanh"),
}


class TorchOps:
    """See ``layers.ops.Ops``."""

    @property
    def adds_in_norms(self) -> bool:
        return False

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)

    def head_norm_(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        x.copy_(self.rms_norm(x, weight, eps))

    def add_normed_(
        self, hidden: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, then: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        hidden.add_(x if weight is None else self.rms_norm(x, weight, eps))
        return hidden if then is None else self.rms_norm(hidden, then, eps)

    def normed_product(
        self, hidden: torch.Tensor, weight: torch.Tensor, eps: float, product: Product, addend: Addend | None = None
    ) -> torch.Tensor:
        if addend is None:
            normed = self.rms_norm(hidden, weight, eps)
        else:
            normed = self.add_normed_(hidden, addend.values, addend.norm_weight, weight, eps)
        return product.method.apply(normed, product.bias)

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        return F.layer_norm(x, weight.shape, weight, bias, eps)

    def add_scaled_(self, x: torch.Tensor, addend: torch.Tensor, scale: torch.Tensor) -> None:
        x.addcmul_(addend, scale)

    def rotary_(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, adjacent: bool = False) -> None:
        cos, sin = cos[:, None], sin[:, None]
        turning = x[..., : 2 * cos.shape[-1]]
        first, second = (turning[..., ::2], turning[..., 1::2]) if adjacent else turning.chunk(2, dim=-1)
        rotated = (first * cos).addcmul_(second, sin, value=-1)
        second.mul_(cos).addcmul_(first, sin)
        first.copy_(rotated)

    def activation(self, name: str) -> Activation:
        if name not in _ACTIVATIONS:
            raise StartupError(f"the model's activation {name} is not supported; known: {', '.join(_ACTIVATIONS)}")
        return _ACTIVATIONS[name]

    def act_and_mul(self, name: str) -> Activation:
        return partial(_act_and_mul, self.activation(name))

    def attended(self, backend: AttentionBackend[Any], step: AttentionStep, method: LinearMethod) -> Attended:
        return Attended(backend.forward(*step).flatten(1))

    def gated_product(self, name: str) -> Multiply:
        return partial(_gated_product, self.act_and_mul(name))

    def feed_forward_(self, x: torch.Tensor, block: FeedForward) -> None:
        act = (self.act_and_mul if block.gated else self.activation)(block.activation)
        up, down = block.up, block.down
        for rows in torch.split(x, block.max_rows or max(1, len(x))):
            inner = act(up.method.apply(self._normed(rows, block), up.bias))
            if block.scale is None:
                down.method.apply(inner, down.bias, rows)
            else:
                self.add_scaled_(rows, down.method.apply(inner, down.bias), block.scale)

    def self_attention_(self, x: torch.Tensor, lengths: Sequence[int], block: SelfAttention) -> None:
        qkv = block.qkv.method.apply(self._normed(x, block), block.qkv.bias)
        attended = self.encoder_attention(qkv, block.num_heads, lengths)
        if block.scale is None:
            block.out.method.apply(attended, block.out.bias, x)
        else:
            self.add_scaled_(x, block.out.method.apply(attended, block.out.bias), block.scale)

    def _normed(self, x: torch.Tensor, block: FeedForward | SelfAttention) -> torch.Tensor:
        if block.norm_bias is None:
            return self.rms_norm(x, block.norm_weight, block.norm_eps)
        return self.layer_norm(x, block.norm_weight, block.norm_bias, block.norm_eps)

    def encoder_attention(self, qkv: torch.Tensor, num_heads: int, lengths: Sequence[int]) -> torch.Tensor:
        """Neighbouring sequences of one length are computed together."""
        outs, start = [], 0
        for length, alike in groupby(lengths):
            end = start + length * len(list(alike))
            heads = (3, num_heads, qkv.shape[1] // 3 // num_heads)
            q, k, v = qkv[start:end].view(-1, length, *heads).permute(2, 0, 3, 1, 4)
            outs.append(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(0, 1).flatten(1))
            start = end
        return torch.cat(outs)


def _act_and_mul(act: Activation, x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return act(gate).mul_(up)


def _gated_product(
    act: Activation,
    method: LinearMethod,
    x: torch.Tensor,
    bias: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
) -> torch.Tensor:
    return method.apply(act(x), bias, residual)
