"""The least time that a model's steps can take on a device, from two measured rates. No torch.

A decode step reads every weight once and the keys and values of each sequence; products and attention follow each
other, so the floor is max(weight bytes, operations of the products) + bytes of keys and values. A prompt is bound by
operations: linear layers for each token, and causal attention. Everything else counts as nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Ceilings:
    """Measured on the device. ``nbytes``: read and written a second. ``operations``: multiplications
    and additions a second of a large matrix product with random numbers in bfloat16."""

    nbytes: float
    operations: float


@dataclass(frozen=True)
class DecoderShape:
    """Of a dense decoder with grouped-query attention and a gated MLP."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def linear_weights(self) -> int:
        """Of all layers."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner)

    @property
    def head_weights(self) -> int:
        """Read once a step, whether or not they are the embedding too."""
        return self.hidden * self.vocab

    def kv_nbytes(self, of_a_number: float = 2) -> float:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * of_a_number


@dataclass(frozen=True)
class TowerShape:
    """Of a vision tower of patches with gated MLPs, windows in most layers, and a merger of squares."""

    hidden: int
    inner: int
    layers: int
    full_layers: int
    window: int
    """Patches in a window."""
    patch_nums: int
    square: int
    """Patches that become one row."""
    out: int


def decode_s(
    shape: DecoderShape, batch: int, context: int, ceilings: Ceilings, weight_nbytes: float = 2, kv_nbytes: float = 2
) -> float:
    """Of one step. ``weight_nbytes``: of a number in the linear layers; the head is in bfloat16."""
    weights = shape.linear_weights * weight_nbytes + shape.head_weights * 2
    operations = 2 * batch * (shape.linear_weights + shape.head_weights)
    products_s = max(weights / ceilings.nbytes, operations / ceilings.operations)
    return products_s + batch * context * shape.kv_nbytes(kv_nbytes) / ceilings.nbytes


def prefill_operations(shape: DecoderShape, tokens: int) -> float:
    """Of a prompt from its first token on: linear layers and causal attention. The head computes one row."""
    return 2 * shape.linear_weights * tokens + attention_operations(shape, tokens)


def attention_operations(shape: DecoderShape, tokens: int) -> float:
    """Scores and weighted sums of all layers, each token with itself and those before it."""
    return 2 * shape.layers * shape.heads * shape.head_dim * tokens**2


def prefill_s(shape: DecoderShape, tokens: int, ceilings: Ceilings) -> float:
    """Of a prompt."""
    return prefill_operations(shape, tokens) / ceilings.operations


def tower_operations(shape: TowerShape, patches: int) -> float:
    """Of one picture."""
    of_layer = 2 * patches * (4 * shape.hidden**2 + 3 * shape.hidden * shape.inner)
    keys = shape.full_layers * patches + (shape.layers - shape.full_layers) * min(shape.window, patches)
    attention = 4 * shape.hidden * patches * keys
    merged = shape.hidden * shape.square
    merger = 2 * patches / shape.square * (merged * merged + merged * shape.out)
    return shape.layers * of_layer + attention + 2 * patches * shape.patch_nums * shape.hidden + merger
