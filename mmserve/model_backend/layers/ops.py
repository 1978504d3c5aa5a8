"""The interface of a platform's operations on activations. Layers are given an implementation at construction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

from mmserve.model_backend.attention.interface import AttentionBackend, AttentionStep
from mmserve.model_backend.layers.linear_method import LinearMethod

Activation = Callable[[torch.Tensor], torch.Tensor]
Multiply = Callable[[LinearMethod, torch.Tensor, torch.Tensor | None, torch.Tensor | None], torch.Tensor]
"""(method, x, bias, residual) -> ``method.apply`` of what it makes of x first."""


class Attended(NamedTuple):
    """What attention has made, for the product behind it."""

    values: torch.Tensor
    """[T, heads * dim]; complete without ``multiply`` alone."""
    multiply: Multiply | None = None
    """Completes the values. To be called before the next layer's attention."""


class Product(Protocol):
    """The part of a linear layer that an operation multiplies with, where all of it is on one rank."""

    @property
    def method(self) -> LinearMethod: ...

    @property
    def bias(self) -> torch.Tensor | None: ...


class Addend(NamedTuple):
    """What is added to hidden states before they are read."""

    values: torch.Tensor
    norm_weight: torch.Tensor | None
    """Their RMSNorm with these weights is added; None: they themselves."""


class FeedForward(NamedTuple):
    """The feed-forward block of a vision tower's layer, with the norm before it."""

    norm_weight: torch.Tensor
    norm_bias: torch.Tensor | None
    """None: RMSNorm, not LayerNorm."""
    norm_eps: float
    up: Product
    activation: str
    down: Product
    gated: bool = False
    """``up`` has the outputs of the gate, then those that it is multiplied with."""
    scale: torch.Tensor | None = None
    """Of each column of the result."""
    max_rows: int | None = None
    """Computed at once where intermediate results take memory; None: all."""


class SelfAttention(NamedTuple):
    """The attention block of a vision tower's layer, with the norm before it."""

    norm_weight: torch.Tensor
    norm_bias: torch.Tensor | None
    """None: RMSNorm, not LayerNorm."""
    norm_eps: float
    qkv: Product
    num_heads: int
    out: Product
    scale: torch.Tensor | None = None
    """Of each column of the result."""


class Ops(Protocol):
    """``platforms.reference.TorchOps`` defines the results; other implementations compute the same faster."""

    @property
    def adds_in_norms(self) -> bool:
        """``add_normed_`` is one pass. Else what it adds has one of its own."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """[T, size]; statistics in float32. Weights may be float32 where x is not."""
        ...

    def head_norm_(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> None:
        """``rms_norm`` of each head of [T, heads, dim], in place. x's rows may have any stride."""
        ...

    def add_normed_(
        self, hidden: torch.Tensor, x: torch.Tensor, weight: torch.Tensor | None, then: torch.Tensor | None, eps: float
    ) -> torch.Tensor:
        """hidden += ``rms_norm(x, weight)``, or x without weights. Returns the sum's norm with the weights ``then``;
        without them the sum."""
        ...

    def normed_product(
        self, hidden: torch.Tensor, weight: torch.Tensor, eps: float, product: Product, addend: Addend | None = None
    ) -> torch.Tensor:
        """[T, size] -> [T, out]: the product with ``rms_norm(hidden, weight)``, once ``addend`` was added in place."""
        ...

    def layer_norm(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float) -> torch.Tensor:
        """Over the last dimension of [..., size]."""
        ...

    def add_scaled_(self, x: torch.Tensor, addend: torch.Tensor, scale: torch.Tensor) -> None:
        """x += addend * scale, of [T, size] with the scale [size] of each column."""
        ...

    def rotary_(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, adjacent: bool = False) -> None:
        """Rotate the first ``size`` numbers of each head of [T, heads, dim] in place.

        A pair is number i and number i + size / 2, or two adjacent numbers. x's rows may have any stride.
        cos, sin: [T, size / 2].
        """
        ...

    def activation(self, name: str) -> Activation:
        """The elementwise function that config.json calls ``name``; it may write over its input.

        Raises StartupError for an unknown name.
        """
        ...

    def act_and_mul(self, name: str) -> Activation:
        """[T, 2 * size] -> act(first half) * second half, [T, size]. Raises StartupError for an unknown name."""
        ...

    def attended(self, backend: AttentionBackend[Any], step: AttentionStep, method: LinearMethod) -> Attended:
        """``backend.forward`` of the step, of which ``method`` will be the product."""
        ...

    def gated_product(self, name: str) -> Multiply:
        """Of ``method.apply`` behind ``act_and_mul`` of that name."""
        ...

    def feed_forward_(self, x: torch.Tensor, block: FeedForward) -> None:
        """x [T, size] += block(x). Weights have finished loading."""
        ...

    def self_attention_(self, x: torch.Tensor, lengths: Sequence[int], block: SelfAttention) -> None:
        """x [T, size] += block(x), with ``encoder_attention`` of sequences of these lengths. Weights have finished
        loading."""
        ...

    def encoder_attention(self, qkv: torch.Tensor, num_heads: int, lengths: Sequence[int]) -> torch.Tensor:
        """[T, 3 * heads * dim] -> [T, heads * dim], without a mask.

        The rows are sequences of these lengths, one behind the other; each attends to itself alone.
        """
        ...
